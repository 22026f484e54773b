"""rounds: an adaptive design asks, rates and chooses the next pairs, round after round.

    compare-1 -> judge-1 -> rate-1 -> compare-2 -> ... -> compare -> judge -> rate

The stages of every round hold all pairs and answers up to then, so the last round's stages have the names of a design
that asks once and are read like those. Answers from earlier rounds are in the answer log and are not bought again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.records import COMPARISON
from anmi_ray.runtime.costs import BEGUN, COMPARED, StageCost, Workload
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages import compare, judge, rate
from anmi_ray.store import Artifact, Flow

if TYPE_CHECKING:
    from anmi_ray.comparisons import Known
    from anmi_ray.rating import QueryBeliefs

_MAIN = (compare.STAGE.name, judge.STAGE.name, rate.STAGE.name)
_BEFORE = ("compared", "judged", "rated")  # roles: those of the round before


def first(name: str, experiment: Experiment) -> str:
    """The first stage that does what the stage `name` (compare, judge, rate) does: round 1's in an adaptive design."""
    return _name(name, 0, experiment.compare) if experiment.in_rounds else name


def names(config: CompareConfig) -> tuple[tuple[str, ...], ...]:
    """The stages that choose, ask and rate, round by round."""
    return tuple(tuple(_name(name, number, config) for name in _MAIN) for number in range(config.rounds))


def stages(config: CompareConfig) -> list[Stage]:
    """Choosing, asking and rating of every round."""
    path: list[Stage] = []
    rounds = names(config)
    for number, (chosen_name, asked_name, rated_name) in enumerate(rounds):
        chosen = replace(compare.STAGE, name=chosen_name, settings="compare", cost=partial(_cost, number=number))
        asked = replace(judge.STAGE, name=asked_name, played_by={COMPARED: chosen_name})
        if number:
            before = dict(zip(_BEFORE, rounds[number - 1], strict=True))
            chosen = replace(
                chosen,
                version=2,  # 2: ranks enter by two shapes
                inputs=(*chosen.inputs, *before),
                played_by=before,
                does="choose which pairs to ask about next: the most informative ones",
                run=partial(run, number=number),
            )
            begun = {BEGUN: rounds[0][0]}  # all rounds share the first one's budget
            asked = replace(asked, inputs=(*asked.inputs, *begun), played_by={**asked.played_by, **begun})
        rated = replace(rate.STAGE, name=rated_name, played_by={"compare": chosen_name, "judge": asked_name})
        path += [chosen, asked, rated]
    return path


def _name(name: str, number: int, config: CompareConfig) -> str:
    return name if number == config.rounds - 1 else f"{name}-{number + 1}"


def run(
    artifact: Artifact, inputs: Mapping[str, Artifact], config: CompareConfig, context: Context, number: int
) -> dict[str, Any]:
    """Choose the pairs of round `number` (1, 2, ...), bucket by bucket; the manifest gets the slopes of ranks."""
    from anmi_ray.runtime.actors import ActorPool

    with ActorPool(context, Chooser, dict(inputs), config, number, actors=context.execution.raters) as pool:
        known = artifact.read_json("first_stage.json")
        if known is None:
            known = {"slopes": pool.run_task(artifact.stage, "slopes", context.buckets)}
            artifact.publish_json("first_stage.json", known)
        flows = pool.run_buckets(artifact, ("comparisons", COMPARISON), "choose", known["slopes"])
    return {"flows": flows, "first_stage": known}


class Chooser:
    """State of an actor: the previous round and the compiled solver."""

    def __init__(self, inputs: Mapping[str, Artifact], config: CompareConfig, number: int) -> None:
        from anmi_ray import rating

        self._sources = rate.RatingSources((rate.Round(inputs["judged"], inputs["compared"]),), inputs["retrieve"])
        self._config = config
        self._number = number
        self._rated: RateConfig = rate.settings_of(inputs["rated"])
        self._globals = rating.Globals.from_json(json.dumps(inputs["rated"].read_json("globals.json")))
        rating.compile_solver(self._rated)

    def slopes(self, buckets: int) -> list[float]:
        """Return the slope of the first stage's order, in latent units per score, by the fit's queries."""
        from anmi_ray import rating

        return rating.worth(*self._sources.sample(buckets, self._rated), self._globals, self._rated).slopes().tolist()

    def choose(self, artifact: Artifact, bucket: int, slopes: list[float]) -> list[Flow]:
        """Choose a bucket's pairs and commit it."""
        from anmi_ray import comparisons, rating

        judgments, before, candidates = self._sources.tables(bucket, self._rated)
        known = known_by(rating.beliefs(judgments, before, candidates, self._globals, self._rated, slopes))
        pairs = comparisons.next_round(before, known, self._config, self._number, self._globals.model)
        queries = len(set(pairs["query_id"].to_pylist()))
        flows = [Flow("queries", queries, queries)]
        artifact.commit_bucket(bucket, {"comparisons": (COMPARISON, pairs)}, flows, None)
        return flows


def known_by(found: Iterable[QueryBeliefs]) -> dict[bytes, Known]:
    """Return the beliefs by query. Anchors are known positives, else the currently best documents."""
    from anmi_ray import comparisons

    known: dict[bytes, Known] = {}
    for one in found:
        positive = np.flatnonzero(one.positive)
        anchors = positive if len(positive) else np.array([int(one.mean.argmax())])
        beliefs = comparisons.Beliefs(one.mean, one.covariance, anchors, one.strength)
        known[one.query_id] = comparisons.Known(one.doc_ids, beliefs)
    return known


def _cost(load: Workload, number: int) -> StageCost:
    """Return the number of new questions; earlier pairs are paid."""
    from anmi_ray import comparisons

    config: CompareConfig = load.config
    documents = min(load.experiment.retrieve.candidates, load.documents)
    before = comparisons.pairs_after(documents, config, number - 1) if number else 0
    pairs = load.compared * (comparisons.pairs_after(documents, config, number) - before)
    work = f"{'at most ' if number and config.target_error else ''}{pairs:,} pairs"
    return StageCost(work, pairs)
