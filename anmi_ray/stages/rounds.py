"""rounds: an adaptive design asks, rates and chooses the next pairs, round after round.

    compare-1 -> judge-1 -> rate-1 -> compare-2 -> ... -> compare -> judge -> rate

The stages of every round hold all pairs so far and all that was said of them, so the last round's are called as those
of a design that asks once, and are read as these. What was asked in a round before costs nothing again: it is in the
answer log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.records import CANDIDATE, COMPARISON, JUDGMENT
from anmi_ray.runtime.costs import BEGUN, COMPARED, COMPARISON_BYTES, StageCost, Workload
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages import compare, judge, rate
from anmi_ray.store import Artifact, Flow

if TYPE_CHECKING:
    from anmi_ray.rating import QueryBeliefs

_PAIR_S = 3e-4
# the roles of the round before
_BEFORE = {"compared": compare.STAGE.name, "judged": judge.STAGE.name, "rated": rate.STAGE.name}


def first(name: str, experiment: Experiment) -> str:
    """The stage that does first what the stage `name` (compare, judge, rate) does: of an adaptive design round 1's."""
    return _name(name, 0, experiment.compare) if experiment.compare.design == "adaptive" else name


def spread(path: Iterable[Stage], config: CompareConfig) -> tuple[Stage, ...]:
    """The path with the stages of all rounds in the place of compare, judge and rate."""
    asking = {compare.STAGE.name, judge.STAGE.name, rate.STAGE.name}
    begun = _name(compare.STAGE.name, 0, config)
    found: list[Stage] = []
    for stage in path:
        if stage.name == compare.STAGE.name:
            found += [one for number in range(config.rounds) for one in _round(number, config)]
        elif stage.name not in asking:
            # later questions are of the first round's campaign
            later = {"first": begun} if "first" in stage.inputs else {}
            found.append(replace(stage, played_by={**stage.played_by, **later}))
    return tuple(found)


def _round(number: int, config: CompareConfig) -> tuple[Stage, Stage, Stage]:
    """Choosing, asking and rating of round `number` (0, 1, ...)."""
    named = partial(_name, number=number, config=config)
    chosen = replace(
        compare.STAGE, name=named(compare.STAGE.name), settings="compare", cost=partial(_cost, number=number)
    )
    asked = replace(judge.STAGE, name=named(judge.STAGE.name), played_by={COMPARED: chosen.name})
    rated = replace(rate.STAGE, name=named(rate.STAGE.name), played_by={"compare": chosen.name, "judge": asked.name})
    if number:
        before = {role: _name(name, number - 1, config) for role, name in _BEFORE.items()}
        chosen = replace(
            chosen,
            inputs=(*compare.STAGE.inputs, *before),
            played_by=before,
            does="choose which pairs to ask about next: those that tell most",
            run=partial(run, number=number),
        )
        begun = {BEGUN: named(compare.STAGE.name, number=0)}  # whose campaign all rounds spend from
        asked = replace(asked, inputs=(*judge.STAGE.inputs, *begun), played_by={**asked.played_by, **begun})
    return chosen, asked, rated


def _name(name: str, number: int, config: CompareConfig) -> str:
    return name if number == config.rounds - 1 else f"{name}-{number + 1}"


def run(
    artifact: Artifact, inputs: Mapping[str, Artifact], config: CompareConfig, context: Context, number: int
) -> dict[str, Any]:
    """Choose the pairs of round `number` (1, 2, ...), bucket by bucket; returns flows for the manifest."""
    from anmi_ray.runtime.actors import ActorPool

    with ActorPool(context, Chooser, dict(inputs), config, number, actors=context.execution.raters) as pool:
        return {"flows": pool.run_buckets(artifact, ("comparisons", COMPARISON), "choose")}


class Chooser:
    """What an actor keeps: the round before, and the solver, compiled."""

    def __init__(self, inputs: Mapping[str, Artifact], config: CompareConfig, number: int) -> None:
        import json

        from anmi_ray import rating

        self._inputs = inputs
        self._config = config
        self._number = number
        self._rated: RateConfig = rate.settings_of(inputs["rated"])
        self._globals = rating.Globals.from_json(json.dumps(inputs["rated"].read_json("globals.json")))
        rating.compile_solver(self._rated)

    def choose(self, artifact: Artifact, bucket: int) -> list[Flow]:
        """Choose a bucket's pairs and commit it."""
        from anmi_ray import comparisons, rating

        before = self._inputs["compared"].read_part("comparisons", bucket, COMPARISON)
        judgments = self._inputs["judged"].read_part("judgments", bucket, JUDGMENT)
        candidates = self._inputs["retrieve"].read_part("candidates", bucket, CANDIDATE)
        told = rating.hide_positives(candidates, self._rated.hide_positives)
        found = rating.beliefs(judgments, before, told, self._globals, self._rated)
        known = {one.query_id: comparisons.Known(one.doc_ids, _of(one)) for one in found}
        pairs = comparisons.next_round(before, known, self._config, self._number, self._globals.model)
        queries = len(set(pairs["query_id"].to_pylist()))
        flows = [Flow("queries", queries, queries)]
        artifact.commit_bucket(bucket, {"comparisons": (COMPARISON, pairs)}, flows, None)
        return flows


def _of(one: QueryBeliefs) -> Any:
    """Anchors are the known positives, else the best by what is known so far."""
    from anmi_ray import comparisons

    positive = np.flatnonzero(one.positive)
    anchors = positive if len(positive) else np.array([int(one.mean.argmax())])
    return comparisons.Beliefs(one.mean, one.covariance, anchors, one.strength)


def _cost(load: Workload, number: int) -> StageCost:
    """Of the round's own pairs: what was asked before is paid."""
    from anmi_ray import comparisons

    config: CompareConfig = load.config
    documents = min(load.experiment.retrieve.candidates, load.documents)
    before = comparisons.pairs_after(documents, config, number - 1) if number else 0
    pairs = load.compared * (comparisons.pairs_after(documents, config, number) - before)
    kept = (pairs + load.compared * before) * COMPARISON_BYTES
    return StageCost(f"{pairs:,} pairs", pairs * _PAIR_S, kept, files=load.buckets, pairs=pairs)
