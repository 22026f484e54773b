"""The similarity judge: a baseline without labels that follows the bi-encoder's order with a soft confidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anmi_ray.config.judge import SimilarityJudgeConfig
from anmi_ray.judging import preferences
from anmi_ray.judging.kinds.base import Judge, Reals
from anmi_ray.judging.protocol import Answers, Order, Questions

_HALF = 0.5
_SLOPE = 10.0  # probits: cosines of candidates differ by about a tenth


@dataclass(frozen=True)
class SimilarityJudge(Judge):
    """p_a = Φ(10 (similarity_a − similarity_b)), without position bias.

    A single document is confirmed if its cosine is above one half.
    """

    config: SimilarityJudgeConfig

    def ask(self, asked: Questions, order: Order, difference: Reals, seed: int) -> Answers:
        similarity = np.append(asked.documents.similarity, _HALF)  # row -1 is nothing
        seen = _SLOPE * (similarity[asked.a] - similarity[asked.b])
        p_a = preferences.of_difference(seen, "soft")
        return Answers(p_a, np.full(len(p_a), -1, dtype=np.int64))


JUDGE = SimilarityJudge
