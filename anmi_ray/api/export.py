"""`anmi export`: copy a run's model to a folder, checked against its seal, with a card from the run's record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anmi_ray.api.onnx_export import write_onnx
from anmi_ray.api.runs import Run
from anmi_ray.core.errors import DataError
from anmi_ray.evaluation.significance import LEVEL
from anmi_ray.models.card import Card, text, weights_in_words
from anmi_ray.stages import by_judges
from anmi_ray.stages.evaluate import baseline_of
from anmi_ray.store import Artifact
from anmi_ray.store.folders import copy_sealed, new_folder
from anmi_ray.store.runs import collection_of

if TYPE_CHECKING:
    from anmi_ray.models.onnx_files import Numbers

_CONTENT = re.compile(r"[0-9a-f]{32}")  # revision of a folder in `models.loading`; a hub's commit has 40 digits
METHODS = (
    "L. L. Thurstone. A law of comparative judgment. Psychological Review 34, 1927.",
    "R. A. Bradley and M. E. Terry. Rank analysis of incomplete block designs. Biometrika 39, 1952.",
    "A. van den Oord, Y. Li, O. Vinyals. Representation learning with contrastive predictive coding (InfoNCE). 2018.",
    "R. Nogueira and K. Cho. Passage re-ranking with BERT. 2019 (cross-encoders).",
    "M. D. Smucker, J. Allan and B. Carterette. A comparison of statistical significance tests for information "
    "retrieval evaluation. CIKM 2007 (the paired test).",
)


def export(
    name: str,
    root: str,
    to: Path,
    license: str | None = None,
    title: str | None = None,
    onnx: Sequence[Numbers] = (),
) -> Path:
    """Copy the model of run `name` to the folder `to` with its card and ONNX files; return `to`.

    Raises ConfigError if the run is unknown or `to` is neither absent nor an empty folder, DataError if the run has no
    model, StoreError if the model does not match its seal, and the errors of `write_onnx`.
    """
    run = Run(name, root)
    train = run.artifacts.get("train")
    if train is None or train.manifest() is None:
        raise DataError("has no model: its train stage is not complete", f"run {name}", "finish it with `anmi run`")
    with new_folder(to) as beside:
        copy_sealed(train, "model", beside)
        for found in (run.fusion(), run.relevance()):
            if found is not None:
                found.write(beside)
        files = write_onnx(beside, onnx, run.artifacts) if onnx else ()
        card = replace(_card(run, license, title or name), onnx=files)
        (beside / "README.md").write_text(text(card, beside), encoding="utf-8")
    return to


def _card(run: Run, license: str | None, title: str) -> Card:
    record, artifacts, fusion, relevant = run.record, run.artifacts, run.fusion(), run.relevance()
    config, judges = record["config"], record["config"]["judge"]["judges"]
    revision = record["stages"]["train"].get("inputs", {}).get("model", "")
    ensemble = config["distill"]["judge"]["judges"] if any(one["kind"] == "distilled" for one in judges) else ()
    evaluate = artifacts.get("evaluate")
    measured = evaluate is not None and evaluate.manifest() is not None
    rows = evaluate.read_json("comparisons.json") if measured else None
    alone = by_judges.measurements(evaluate) if measured and not rows else None
    collection = collection_of(record)
    return Card(
        name=title,
        base_model=public_model(config["train"]["model"], revision),
        judges=_judges(judges) + (f", distilled from {_judges(ensemble)}" if ensemble else ""),
        simulated=any(judge["kind"] == "simulated" for judge in (*judges, *ensemble)),
        collection=collection,
        data=list(_data(collection, artifacts)),
        method=list(_method(config, artifacts["train"], record["environment"])),
        citations=METHODS,
        comparisons=rows or [asdict(row) for row in (alone.comparisons if alone else ())],
        baseline=baseline_of(evaluate) if evaluate is not None else "",
        level=config["evaluate"].get("level", LEVEL),  # records of before it was fixed have their own
        license=license,
        fusion=None if fusion is None else fusion.weights,
        by_judges=alone.said() if alone else "",
        elsewhere=[asdict(one) for one in run.elsewhere()],
        relevance=tuple(relevant.said()) if relevant is not None else (),
    )


def _judges(judges: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{judge['name']} ({judge['kind']})" for judge in judges)


def public_model(model: str, revision: str = "") -> str:
    """Return a model's name without the path of a folder.

    `revision`, as the run recorded it, tells folders from hub ids like "models/start" even if the folder is gone.
    """
    folder = model.startswith(("/", "~", ".")) or bool(_CONTENT.fullmatch(revision)) or Path(model).is_dir()
    return Path(model).name if folder else model


def _data(collection: str, artifacts: Mapping[str, Artifact]) -> Any:
    manifest = artifacts["ingest"].manifest() or {}
    flows = {flow["unit"]: flow["rows_out"] for flow in manifest.get("flows", ())}
    yield "collection", collection
    yield "documents", f"{flows.get('documents', 0):,}"
    labelled = manifest.get("labelled", {})
    for split, count in sorted(manifest.get("splits", {}).items()):
        said = f", {labelled[split]:,} of them labelled" if labelled.get(split, count) != count else ""
        yield f"{split} queries", f"{count:,}{said}"
    judged = (artifacts["judge"].manifest() or {}).get("flows", ())
    for flow in judged:
        yield f"judged: {flow['unit']}", f"{flow['rows_out']:,} of {flow['rows_in']:,}"
    summary = artifacts["mine"].read_json("summary.json") or {}
    if summary:
        each = summary["negatives_per_example"] or 0.0
        yield "examples", f"{summary['examples']:,} of {summary['queries']:,} queries, {each:.1f} negatives each"
        false = (summary["false_negative_rate"] or {}).get("mean")
        if false is not None:
            yield "false negatives, estimated", f"{100 * false:.2f} % of the chosen weight"


def _method(config: Mapping[str, Any], train: Artifact, environment: Mapping[str, Any]) -> Any:
    mine, training, manifest = config["mine"], config["train"], train.manifest() or {}
    rules = [*mine.get("allow", ()), mine.get("weigh"), mine.get("sample")]
    yield "ratings", f"{config['rate'].get('model', '')}, with standard errors"
    yield "negatives", " -> ".join(rule["rule"] if isinstance(rule, Mapping) else str(rule) for rule in rules if rule)
    loss, balance = training["loss"], training["balance"]
    share = f"{balance['alpha']:g}" if balance["rule"] == "fixed" else f"by {balance['rule']}"
    yield "loss", f"alpha x {loss['ranking']} + (1 - alpha) x regression on {loss['regression']}, alpha {share}"
    yield "curriculum", str(training["curriculum"]["rule"])
    if (student := training.get("student", "cross-encoder")) != "cross-encoder":
        lent = ", documents of other lists as negatives" if loss["in_batch"] else ""
        how = "cosine of unit vectors" if student == "bi-encoder" else "mean over the query's tokens of the best cosine"
        yield "student", f"{student}, {how}{lent}"
    yield "engine", f"{training['engine']}, precision {training['precision']}"
    dev = "" if manifest.get("dev") is None else f", nDCG@10 {manifest['dev']:.4f} on dev"
    which = weights_in_words(manifest.get("best_step"), manifest.get("steps"), manifest.get("share", 1.0))
    yield "weights", f"{which}{dev}"
    settings = {key: value for key, value in manifest.get("settings", {}).items() if key != "model"}
    yield "settings that differ from the defaults", f"`{json.dumps(settings)}`"
    yield "versions", ", ".join(f"{key} {value}" for key, value in environment.get("versions", {}).items())
