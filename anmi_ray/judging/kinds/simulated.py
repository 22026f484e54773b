"""A simulated panel over a latent relevance built from labels and similarity, with all biases that audits measure.

Each random number is a hash of the seed and its purpose, so order, subsets and reruns do not change answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anmi_ray.config.judge import POSITIVE_BONUS, SharedNoiseConfig, SimulatedJudgeConfig, TruthConfig
from anmi_ray.core.identity import uniforms
from anmi_ray.core.scale import normal_quantile
from anmi_ray.judging import preferences
from anmi_ray.judging.kinds.base import Judge, Reals
from anmi_ray.judging.protocol import Answers, Documents, Order, Questions

FAILURES = ("simulated failure: timeout", "simulated failure: unreadable answer")


def latent(known: Documents, config: TruthConfig, seed: int) -> Reals:
    """Return true relevance in probits, float[D]: bonus·positive + slope·z(similarity) + hidden noise.

    z is within the query over its compared documents; a constant similarity gives z = 0.
    """
    hidden = config.relevance_sd * _normals(known.ids, "judge", seed, "relevance")
    return POSITIVE_BONUS * known.is_positive + config.similarity_slope * _standardise(known) + hidden


def perceived(asked: Questions, truth: TruthConfig, shared: SharedNoiseConfig, seed: int) -> Reals:
    """Return doc_a − doc_b in probits as the panel perceives it, float[P]: the truth plus common errors.

    A single document is compared with the midpoint of a known positive and another document, both of the query's mean
    similarity.
    """
    known = asked.documents
    seen = latent(known, truth, seed) + shared.document_sd * _normals(known.ids, "judge", seed, "document")
    seen = np.append(seen, POSITIVE_BONUS / 2)  # row -1 is nothing
    return seen[asked.a] - seen[asked.b] + shared.pair_sd * _normals(asked.ids, "judge", seed, "pair")


@dataclass(frozen=True)
class SimulatedJudge(Judge):
    """One judge of a simulated panel."""

    config: SimulatedJudgeConfig

    def ask(self, asked: Questions, order: Order, difference: Reals, seed: int) -> Answers:
        """Return answers in one order, for the panel's perceived `difference` float[P].

        It perceives difference + taste_a − taste_b + noise ± position_bias, then ties and fails as configured.
        """
        config = self.config
        key = ("judge", seed, config.name)
        seen = difference + _noise(asked, order, config, key)
        if config.taste_sd:
            taste = config.taste_sd * _normals(asked.documents.ids, *key, "taste")
            taste = np.append(taste, 0.0)  # row -1 is nothing
            seen = seen + taste[asked.a] - taste[asked.b]
        seen = seen + (config.position_bias if order == "ab" else -config.position_bias)
        p_a = preferences.of_difference(seen, config.readout, config.tie_width)
        failure = np.full(len(p_a), -1, dtype=np.int64)
        if config.failure_rate:
            luck = uniforms(asked.ids, *key, order, "failure")
            failure[luck < config.failure_rate] = 0
            failure[luck < config.failure_rate / 2] = 1
        return Answers(p_a, failure, FAILURES)


def _noise(asked: Questions, order: Order, config: SimulatedJudgeConfig, key: tuple[str | int, ...]) -> Reals:
    """Return the judge's noise: a part shared by both orders and a part per order."""
    noise = np.zeros(len(asked.ids))
    for variance, about in ((config.order_correlation, "both"), (1 - config.order_correlation, order)):
        share = np.sqrt(variance)
        if share:
            noise += share * _draw(asked.ids, config, (*key, about, "noise"))
    return config.noise_sd * noise


def _draw(ids: NDArray[np.uint8], config: SimulatedJudgeConfig, key: tuple[str | int, ...]) -> Reals:
    """Return noise with sd 1: normal, or Student's t by Bailey's polar method (1994), √(ν(u^(−2/ν) − 1))·cos(2πv)."""
    if config.tail == "normal":
        return _normals(ids, *key)
    df = config.tail_df
    radius = np.sqrt(df * (uniforms(ids, *key, "radius") ** (-2 / df) - 1))
    return np.sqrt((df - 2) / df) * radius * np.cos(2 * np.pi * uniforms(ids, *key, "angle"))


def _normals(ids: NDArray[np.uint8], *salt: str | int) -> Reals:
    return normal_quantile(uniforms(ids, *salt))


def _standardise(known: Documents) -> Reals:
    """Return the similarity standardized within the query."""
    count = np.maximum(np.bincount(known.query), 1)
    centred = known.similarity - (np.bincount(known.query, known.similarity) / count)[known.query]
    sd = np.sqrt(np.bincount(known.query, centred**2) / count)[known.query]
    # differences by rounding alone count as constant
    flat = sd <= 1e-12 * (1 + np.abs(known.similarity))
    return np.where(flat, 0.0, centred / np.where(flat, 1.0, sd))


JUDGE = SimulatedJudge
