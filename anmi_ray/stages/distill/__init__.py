"""distill: an ensemble's judgments of sampled pairs -> a small judge, calibrated and measured on held-out pairs.

Pairs are split by query: train, dev (chooses the checkpoint, calibrates), test (report). Logits of the held-out pairs
are published at each dev point, so a resumed run keeps them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.special import expit

from anmi_ray.config.distill import DEV_SHARE, TEST_SHARE, DistillConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import id_matrix, uniforms
from anmi_ray.core.records import CANDIDATE, COMPARISON, JUDGMENT, PREDICTION, REJECT, find_rows, rejects
from anmi_ray.evaluation.pairwise import JUDGE, Predictor, compare
from anmi_ray.evaluation.significance import Estimate
from anmi_ray.judging import calibration, panel
from anmi_ray.models import loading
from anmi_ray.runtime.stage import Inputs, Stage
from anmi_ray.runtime.tasks import Context, over_buckets
from anmi_ray.stages import train
from anmi_ray.stages.ingest import DEV, TEST, TRAIN
from anmi_ray.store import Artifact, Flow, parquet_bytes, uri

if TYPE_CHECKING:
    from anmi_ray.training.loop import Trained

LOGITS = "logits"
PAIRS = "pairs.parquet"
UNCALIBRATED, SIMILARITY = "before calibration", "similarity judge"
Reals = NDArray[np.float64]


def run(artifact: Artifact, inputs: Inputs, config: DistillConfig, context: Context) -> dict[str, Any]:
    """Train, calibrate and measure the judge; return flows and facts for the manifest.

    Raises DataError if pairs are of too few queries to split, fewer than labels, or all ties; also as `run_training`.
    """
    from anmi_ray.stages.distill import worker
    from anmi_ray.stages.train.trainer import clear_checkpoints, train_artifact

    sample, label, retrieve, ingest = (inputs[name] for name in ("sample", "label", "retrieve", "ingest"))
    buckets = list(range(context.buckets))
    found = over_buckets(context, buckets, _pairs_of, sample, label, retrieve, config)
    pairs = pa.concat_tables([one for one, _ in found]).sort_by("comparison_id")
    refused = [one for _, missing in found for one in missing]
    if not pairs.num_rows:
        raise DataError("the ensemble answered about no pair", "stage distill", "see the rejects of label: `anmi show`")
    pairs = pairs.append_column("split", pa.array(split_of(pairs["query_id"], config)))
    artifact.store.publish(f"{artifact.path}/{PAIRS}", parquet_bytes(pairs, {"fingerprint": artifact.fingerprint}))

    def sources() -> worker.PairSources:
        return worker.PairSources(
            pairs=artifact.store.uri(f"{artifact.path}/{PAIRS}"),
            texts=[retrieve.store.uri(retrieve.part_path("texts", bucket)) for bucket in buckets],
            queries=[ingest.store.uri(ingest.part_path("queries", bucket)) for bucket in buckets],
            logits=artifact.store.uri(f"{artifact.path}/{LOGITS}"),
        )

    def report(row: Mapping[str, Any]) -> None:
        train.report_steps(context, row)

    result = train_artifact(artifact, sources, config, context, report, worker.distill)
    facts = _report(artifact, pairs, label, config, result)
    clear_checkpoints(artifact, context.execution.training)
    if refused:
        why = rejects("distill", [(one.hex(), "no answer", "no judge of the ensemble answered") for one in refused])
        artifact.publish_part("rejects", 0, why, REJECT)
    return {"flows": [Flow("pairs", pairs.num_rows + len(refused), pairs.num_rows, len(refused))], **facts}


def _pairs_of(
    bucket: int, sample: Artifact, label: Artifact, retrieve: Artifact, config: DistillConfig
) -> tuple[pa.Table, list[bytes]]:
    """Return a bucket's pairs with scores and similarities, and the ids of pairs without a score."""
    comparisons = sample.read_part("comparisons", bucket, COMPARISON)
    scored = panel.scores(label.read_part("judgments", bucket, JUDGMENT), config.votes)
    at = find_rows(scored, {"comparison_id": comparisons["comparison_id"]})
    kept = comparisons.filter(pa.array(at >= 0))
    scored = scored.take(pa.array(at[at >= 0]))
    candidates = retrieve.read_part("candidates", bucket, CANDIDATE)
    columns = {name: kept[name] for name in ("comparison_id", "query_id", "doc_a", "doc_b")}
    for side in ("a", "b"):
        row = find_rows(candidates, {"query_id": kept["query_id"], "doc_id": kept[f"doc_{side}"]})
        columns[f"similarity_{side}"] = candidates["similarity"].take(pa.array(row)).cast(pa.float64())
    pairs = pa.table({**columns, "score": scored["score"], "judges": scored["judges"]})
    return pairs, comparisons.filter(pa.array(at < 0))["comparison_id"].to_pylist()


def split_of(query_ids: pa.ChunkedArray | pa.Array, config: DistillConfig) -> list[str]:
    """Split of each pair: queries in the order of their hash, first test, then dev, then train.

    Raises DataError on fewer than three queries.
    """
    ids = pc.unique(query_ids)
    count = len(ids)
    if count < 3:
        raise DataError(
            f"the pairs are of {count} {'query' if count == 1 else 'queries'}, and splitting by query needs three",
            "stage distill",
            "give more train queries, or raise distill.sample.pairs",
        )
    draw = np.argsort(uniforms(id_matrix(ids), "distill", config.sample.seed), kind="stable")
    test = min(max(round(TEST_SHARE * count), 1), count - 2)
    dev = min(max(round(DEV_SHARE * count), 1), count - test - 1)
    names = np.full(count, TRAIN, dtype=object)
    names[draw[:test]], names[draw[test : test + dev]] = TEST, DEV
    return names[pc.index_in(query_ids, value_set=ids).to_numpy()].tolist()


def _report(
    artifact: Artifact, pairs: pa.Table, label: Artifact, config: DistillConfig, result: Trained
) -> dict[str, Any]:
    """Publish predictions of the test pairs and the summary; returns facts for the manifest."""
    predictions, fitted = _predictions(artifact, pairs, config, result)
    if config.form == "bi-encoder" and not fitted.beta:
        raise DataError(
            "the judge predicts nothing about the held-out dev pairs: its best calibration is a constant",
            "stage distill",
            "give it more pairs to learn from (distill.sample.pairs), or an ensemble that prefers more often",
        )
    artifact.publish_part("predictions", 0, predictions, PREDICTION)
    compared = compare(predictions, JUDGE, [SIMILARITY, UNCALIBRATED])
    judgments = sum(flow["rows_in"] for flow in (label.manifest() or {})["flows"] if flow["unit"] == "judgments")
    artifact.publish_json("summary.json", _summary(compared, pairs, fitted, judgments, config.form))
    return {"best_step": result.best_step, "steps": result.steps, "dev": result.dev}


def _summary(
    compared: Sequence[Predictor],
    pairs: pa.Table,
    fitted: calibration.OrderCalibration,
    judgments: int,
    form: str,
) -> dict[str, Any]:
    """Held-out figures with intervals over queries, of the judge and of the baselines."""
    figures = {
        one.name: {
            "accuracy_consensus": _ends(one.accuracy),
            "brier": _ends(one.brier),
            "ece": one.calibration.ece,
            "calibration_rms": _ends(one.calibration.rms),
            "calibration_slope": _ends(one.calibration.slope),
        }
        for one in compared
    }
    test = pairs.filter(pc.equal(pairs["split"], TEST))
    return {
        "pairs": pairs.num_rows,
        "queries": pc.count_distinct(pairs["query_id"]).as_py(),
        "test_pairs": test.num_rows,
        "test_queries": pc.count_distinct(test["query_id"]).as_py(),
        "consensus": compared[0].accuracy.n,
        "judgments": judgments,
        "temperature": None if fitted.beta == 0 else 1.0 / fitted.beta,
        "slope": fitted.beta if form == "bi-encoder" else 1.0,
        **figures.pop(JUDGE),
        "baselines": figures,
    }


def _ends(found: Estimate) -> list[float | None]:
    return [found.mean, found.low, found.high]


def _predictions(
    artifact: Artifact, pairs: pa.Table, config: DistillConfig, result: Trained
) -> tuple[pa.Table, calibration.OrderCalibration]:
    """Prediction rows of the test pairs up to the best step, each step calibrated on the dev pairs."""
    target = config.target
    held = pairs.filter(pc.not_equal(pairs["split"], TRAIN))
    is_dev = pc.equal(held["split"], DEV).to_numpy(zero_copy_only=False)
    score, test = held["score"].to_numpy(), held.filter(pa.array(~is_dev))
    rows, fitted, plain = [], None, None
    for step, logits in _held_logits(artifact, result.best_step):
        is_dev_R = np.repeat(is_dev, 2)
        of_dev = logits[is_dev_R]
        of_test = logits[~is_dev_R]
        fitted = calibration.fit(of_dev, score[is_dev], target)
        found = calibration.averaged(fitted.sharpened(of_test), target)
        rows.append(_said(JUDGE, target, step, test, found))
        plain = of_test
    assert fitted is not None, "the best step was evaluated"
    assert plain is not None
    rows.append(_said(UNCALIBRATED, target, result.best_step, test, calibration.averaged(plain, target)))
    rows.append(_said(SIMILARITY, "binary", 0, test, _similarity(pairs, test)))
    return pa.concat_tables(rows), fitted


def _held_logits(artifact: Artifact, last: int) -> list[tuple[int, NDArray[np.float32]]]:
    """Read (step, logits float32[R, L] of the held-out pairs) of each dev point up to `last`."""
    files, folder = uri.filesystem(artifact.store.uri(f"{artifact.path}/{LOGITS}"))
    found = []
    for name in sorted(artifact.store.tree(f"{artifact.path}/{LOGITS}")):
        step = re.fullmatch(r"step-(\d+)\.parquet", name)
        if step is not None and int(step[1]) <= last:
            table = pq.read_table(f"{folder}/{name}", filesystem=files)
            found.append((int(step[1]), np.stack([column.to_numpy() for column in table.columns], axis=1)))
    return found


def _similarity(pairs: pa.Table, test: pa.Table) -> calibration.Averaged:
    """The first stage's similarity as a judge, calibrated on the train and dev pairs."""
    known = pairs.filter(pc.not_equal(pairs["split"], TEST))
    difference, of_test = ((t["similarity_b"].to_numpy() - t["similarity_a"].to_numpy()) for t in (known, test))
    beta = calibration.fit_temperature(difference, known["score"].to_numpy(), calibration.SHARPEST)
    second = expit(beta * of_test)
    return calibration.Averaged(1.0 - second, second, np.zeros(len(second)))


def _said(model: str, target: str, step: int, test: pa.Table, found: calibration.Averaged) -> pa.Table:
    """Prediction rows of one model at one step."""
    rows, two = test.num_rows, target == "two-head"
    decided = found.first_P + found.second_P
    none = pa.nulls(rows, pa.float64())
    tie = np.zeros(rows) if target == "binary" else found.tie_P
    return PREDICTION.table(
        {
            "model": [model] * rows,
            "target": [target] * rows,
            "step": np.full(rows, step, dtype=np.int64),
            "comparison_id": test["comparison_id"],
            "query_id": test["query_id"],
            "score": test["score"],
            "p_a": none if two else found.first_P,
            "p_b": none if two else found.second_P,
            "p_tie": none if two else tie,
            "mean": found.mean_P if two else none,
            "decided": np.minimum(decided, 1.0) if two else none,
        }
    )


STAGE = Stage(
    name="distill",
    version=2,
    inputs=("sample", "label", "retrieve", "ingest"),
    does="train a small judge on what the ensemble said",
    run=run,
    left_out=frozenset({"judge", "sample"}),
    also=lambda config, *_: {"model": loading.resolve(config.model).revision or "unpinned"},
    needs=train.needs,
    check=train.check,
)
