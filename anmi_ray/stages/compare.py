"""compare: candidates -> which pairs of documents to ask about, a sparse graph per query, or a file's pairs.

An adaptive design asks, rates and chooses the next pairs, round after round:

    compare-1 -> judge-1 -> rate-1 -> compare-2 -> ... -> compare -> judge -> rate

The stages of every round hold all pairs and answers up to then, so the last round's stages have the names of a design
that asks once and are read like those. Answers from earlier rounds are in the answer log and are not bought again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.paths import as_written
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import CANDIDATE, COMPARISON, IMPORTED
from anmi_ray.runtime.costs import BEGUN, COMPARED, StageCost, Workload
from anmi_ray.runtime.stage import Inputs, Stage
from anmi_ray.runtime.tasks import Context, run_buckets
from anmi_ray.stages import judge, rate
from anmi_ray.stages.ingest import TRAIN_QUERIES
from anmi_ray.store import Artifact, Flow

if TYPE_CHECKING:
    from anmi_ray.comparisons import Known
    from anmi_ray.rating import QueryBeliefs

_SEAL = ("comparisons", COMPARISON)
_BEFORE = ("compared", "judged", "rated")  # roles: those of the round before


def run(artifact: Artifact, inputs: Inputs, config: CompareConfig, context: Context) -> dict[str, Any]:
    """Run one task per bucket. Raises DataError if no pair of an imported file can be compared."""
    retrieve = inputs["retrieve"]
    if config.design != "imported":
        return {"flows": run_buckets(context, artifact, _SEAL, _bucket, retrieve, config, context.seed)}
    from anmi_ray.stages.judge import importing

    ingest = Artifact(artifact.store, "ingest", (retrieve.manifest() or {})["inputs"]["ingest"])
    preferences = importing.bring_in(config, ingest, context)
    flows = run_buckets(context, artifact, _SEAL, _imported_bucket, retrieve, preferences)
    if not any(flow.rows_out for flow in flows if flow.unit == "preferences"):
        raise DataError(
            "no pair of the file has two candidates of its query",
            as_written(config.path or ""),
            "raise retrieve.candidates and retrieve.depth: only documents that are retrieved are compared, of train "
            "queries, and of dev queries where corpus.unlabelled_dev holds them out",
        )
    return {"flows": flows}


def _bucket(artifact: Artifact, bucket: int, retrieve: Artifact, config: CompareConfig, seed: int) -> list[Flow]:
    from anmi_ray import comparisons

    candidates = retrieve.read_part("candidates", bucket, CANDIDATE)
    choose = comparisons.first_round if config.design == "adaptive" else comparisons.compare
    pairs, rejects = choose(candidates, config, seed)
    queries = len(set(candidates["query_id"].to_pylist()))
    flows = [Flow("queries", queries, queries - rejects.num_rows, rejects.num_rows)]
    artifact.commit_bucket(bucket, {"comparisons": (COMPARISON, pairs)}, flows, rejects)
    return flows


def _imported_bucket(artifact: Artifact, bucket: int, retrieve: Artifact, imported: Artifact) -> list[Flow]:
    """Count rows of the file in and rows used out; rejects include those of reading the file."""
    from anmi_ray import comparisons
    from anmi_ray.comparisons.compare import NOT_CANDIDATES, NOT_COMPARED
    from anmi_ray.judging.imported import refused
    from anmi_ray.stages.judge import importing

    candidates = retrieve.read_part("candidates", bucket, CANDIDATE)
    rows = imported.read_part("preferences", bucket, IMPORTED)
    before = importing.rejects_of(imported, bucket)
    pairs, left, without = comparisons.imported(candidates, rows)
    query_ids = pc.unique(candidates["query_id"])
    compared = pc.is_in(left["query_id"], value_set=query_ids)
    refusals = [refused(left.filter(compared), NOT_CANDIDATES), refused(left.filter(pc.invert(compared)), NOT_COMPARED)]
    bad = before.num_rows + left.num_rows
    flows = [
        Flow("preferences", rows.num_rows + before.num_rows, rows.num_rows - left.num_rows, bad),
        Flow("queries", len(query_ids), len(query_ids) - without.num_rows, without.num_rows),
    ]
    rejects = pa.concat_tables([before, *refusals, without])
    artifact.commit_bucket(bucket, {"comparisons": (COMPARISON, pairs)}, flows, rejects)
    return flows


def choose_next(
    artifact: Artifact, inputs: Inputs, config: CompareConfig, context: Context, number: int
) -> dict[str, Any]:
    """Choose the pairs of round `number` (1, 2, ...), bucket by bucket; the manifest gets the slopes of ranks."""
    from anmi_ray.runtime.actors import ActorPool

    with ActorPool(context, Chooser, dict(inputs), config, number, actors=context.execution.raters) as pool:
        known = artifact.read_json("first_stage.json")
        if known is None:
            known = {"slopes": pool.run_task(artifact.stage, "slopes", context.buckets)}
            artifact.publish_json("first_stage.json", known)
        flows = pool.run_buckets(artifact, _SEAL, "choose", known["slopes"])
    return {"flows": flows, "first_stage": known}


class Chooser:
    """State of an actor: the previous round and the compiled solver."""

    def __init__(self, inputs: Inputs, config: CompareConfig, number: int) -> None:
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


def _also(config: CompareConfig, *_: Any) -> dict[str, str]:
    if config.path is None:
        return {}
    from anmi_ray.tables import formats

    return {"file": formats.identity_of(Path(config.path).expanduser())}


def _cost(load: Workload) -> StageCost:
    """Return the number of rows of a file as an upper bound."""
    config: CompareConfig = load.config
    pairs = load.candidates * config.degree // 2
    work = f"{pairs:,} pairs, {config.degree} per document"
    if config.path is not None:
        from anmi_ray.tables import formats

        batches = formats.read_batches(Path(config.path).expanduser(), ("query_id",))
        pairs = sum(rows.table.num_rows for rows in batches)
        work = f"at most {pairs:,} pairs of {config.path}"
    return StageCost(work, pairs)


def _cost_of_round(load: Workload, number: int) -> StageCost:
    """Return the number of new questions; earlier pairs are paid."""
    from anmi_ray import comparisons

    config: CompareConfig = load.config
    documents = min(load.experiment.retrieve.candidates, load.documents)
    before = comparisons.pairs_after(documents, config, number - 1) if number else 0
    pairs = load.compared * (comparisons.pairs_after(documents, config, number) - before)
    work = f"{'at most ' if number and config.target_error else ''}{pairs:,} pairs"
    return StageCost(work, pairs)


STAGE = Stage(
    name="compare",
    version=2,  # 2: rings in order of hashes
    inputs=("retrieve",),
    does="choose which pairs of candidates to ask about: a sparse regular graph",
    run=run,
    cost=_cost,
    also=_also,
    split=TRAIN_QUERIES,
)


def first(name: str, experiment: Experiment) -> str:
    """The first stage that does what the stage `name` (compare, judge, rate) does: round 1's in an adaptive design."""
    return _name(name, 0, experiment.compare) if experiment.compare.design == "adaptive" else name


def round_names(config: CompareConfig) -> tuple[tuple[str, ...], ...]:
    """The stages that choose, ask and rate, round by round."""
    main = (STAGE.name, judge.STAGE.name, rate.STAGE.name)
    return tuple(tuple(_name(name, number, config) for name in main) for number in range(config.rounds))


def rounds(config: CompareConfig) -> list[Stage]:
    """Choosing, asking and rating of every round."""
    path: list[Stage] = []
    names = round_names(config)
    for number, (chosen_name, asked_name, rated_name) in enumerate(names):
        chosen = replace(STAGE, name=chosen_name, settings="compare", cost=partial(_cost_of_round, number=number))
        asked = replace(judge.STAGE, name=asked_name, played_by={COMPARED: chosen_name})
        if number:
            before = dict(zip(_BEFORE, names[number - 1], strict=True))
            chosen = replace(
                chosen,
                version=2,  # 2: ranks enter by two shapes
                inputs=(*chosen.inputs, *before),
                played_by=before,
                does="choose which pairs to ask about next: the most informative ones",
                run=partial(choose_next, number=number),
            )
            begun = {BEGUN: names[0][0]}  # all rounds share the first one's budget
            asked = replace(asked, inputs=(*asked.inputs, *begun), played_by={**asked.played_by, **begun})
        rated = replace(rate.STAGE, name=rated_name, played_by={"compare": chosen_name, "judge": asked_name})
        path += [chosen, asked, rated]
    return path


def _name(name: str, number: int, config: CompareConfig) -> str:
    return name if number == config.rounds - 1 else f"{name}-{number + 1}"
