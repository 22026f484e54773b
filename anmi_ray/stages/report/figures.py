"""Figures of the report from artifacts, one bucket at a time: rounds of an adaptive design, and cost of reranking."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.comparisons.adaptive import TOP
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.records import COMPARISON, JUDGMENT, RATING, RUN
from anmi_ray.reports.run import uniform_pairs
from anmi_ray.runtime.stage import Inputs
from anmi_ray.stages.compare import round_names
from anmi_ray.stages.rate import prior_elo
from anmi_ray.stages.rerank.held_out import timing_of
from anmi_ray.stages.rerank.ranking import SYSTEM
from anmi_ray.store import Artifact

_WEIGHTS = ".safetensors"


def design_rounds(artifacts: Inputs, experiment: Experiment, buckets: Iterable[int]) -> dict[str, Any] | None:
    """Return the state of an adaptive design after each round of a complete run; None if the design asks once.

    rounds: number, from 1; queries with pairs chosen in this round; mean pairs per query up to this round; mean
        answers per judge; std_err_elo and top_std_err_elo, the mean standard error of all documents and of each
        query's best, and prior_elo, the standard deviation of the fit's prior, in Elo points.
    top: how many documents count as the best of a query.
    uniform_pairs: pairs per query that a uniform graph would need for the last round's error of the best.
    """
    if experiment.compare.design != "adaptive":
        return None
    found = [
        _round(number, artifacts[compared], artifacts[judged], artifacts[rated], buckets)
        for number, (compared, judged, rated) in enumerate(round_names(experiment.compare), start=1)
    ]
    return {"rounds": found, "top": TOP, "uniform_pairs": uniform_pairs(found)}


def _round(
    number: int, compared: Artifact, judged: Artifact, rated: Artifact, buckets: Iterable[int]
) -> dict[str, Any]:
    pairs, errors, top_errors = np.zeros((3, 2))  # sum and number of values
    answers: Counter[str] = Counter()
    queries = 0
    for bucket in buckets:
        comparisons = compared.read_part("comparisons", bucket, COMPARISON, columns=["query_id", "round"])
        mine = comparisons.filter(pc.equal(comparisons["round"], number - 1))
        queries += len(pc.unique(mine["query_id"]))
        counts = pc.value_counts(comparisons["query_id"]).field("counts").to_numpy()
        pairs += counts.sum(), len(counts)
        judgments = judged.read_part("judgments", bucket, JUDGMENT, columns=["judge", "p_a"])
        counted = judgments.group_by("judge").aggregate([("p_a", "count")])  # failures have no p_a
        answers.update(dict(zip(counted["judge"].to_pylist(), counted["p_a_count"].to_pylist(), strict=True)))
        ratings = rated.read_part("ratings", bucket, RATING, columns=["query_id", "rating_elo", "std_err_elo"])
        std_err = ratings["std_err_elo"].to_numpy()
        errors += std_err.sum(), len(std_err)
        top = std_err[_best(ratings)]
        top_errors += top.sum(), len(top)
    return {
        "number": number,
        "queries": queries,
        "pairs": _mean(pairs) or 0.0,
        "answers": answers.total() / len(answers) if answers else 0.0,
        "std_err_elo": _mean(errors),
        "top_std_err_elo": _mean(top_errors),
        "prior_elo": prior_elo(rated),
    }


def _mean(total: NDArray[np.float64]) -> float | None:
    return float(total[0] / total[1]) if total[1] else None


def _best(ratings: pa.Table) -> NDArray[np.int64]:
    """Return the rows of every query's TOP documents by rating."""
    query = ratings["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.lexsort((-ratings["rating_elo"].to_numpy(), query))
    first = np.searchsorted(query[order], query[order])
    return order[np.arange(len(order)) - first < TOP]


def serving(rerank: Artifact, train: Artifact, buckets: Iterable[int], apart: bool) -> dict[str, Any]:
    """Figures of a complete run.

    apart: True if the model reads texts alone, so that a document is encoded once for all queries.
    seconds: for the top `depth` documents of `queries` queries, including process starts; None if interrupted.
    cores: None on a cluster or a GPU.
    documents: number of encoded documents; None unless `apart`.
    """
    manifest = rerank.manifest() or {}
    depth = int(manifest["depth"])
    timing = rerank.store.read_json(timing_of(rerank)) or {}
    parameters, size = model_size(train, "model")
    return {
        "depth": depth,
        "queries": next(flow["rows_out"] for flow in manifest["flows"] if flow["unit"] == "held-out queries"),
        "seconds": timing.get("seconds"),
        "cores": timing.get("cores"),
        "documents": _documents(rerank, buckets, depth) if apart else None,
        "parameters": parameters,
        "model_bytes": size,
    }


def model_size(artifact: Artifact, folder: str) -> tuple[int | None, int | None]:
    """Return the parameters of a sealed model and the bytes of its weights, from the headers of safetensors files.

    None without such files.
    """
    files = [name for name in artifact.read_json(f"{folder}.files.json") or () if name.endswith(_WEIGHTS)]
    parameters = size = 0
    for name in files:
        with artifact.store.open_input(f"{artifact.path}/{folder}/{name}") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
            size += stream.size()
        parameters += sum(math.prod(one["shape"]) for key, one in header.items() if key != "__metadata__")
    return (parameters, size) if files else (None, None)


def _documents(rerank: Artifact, buckets: Iterable[int], depth: int) -> int:
    """Return the number of distinct documents in the top `depth` of all queries."""
    found = [RUN.empty()["doc_id"].combine_chunks()]
    for bucket in buckets:
        runs = rerank.read_part("runs", bucket, RUN, columns=["doc_id", "system", "rank"])
        top = runs.filter(pc.and_(pc.equal(runs["system"], SYSTEM), pc.less_equal(runs["rank"], depth)))
        found.append(pc.unique(top["doc_id"]))
    return len(pc.unique(pa.concat_arrays(found)))
