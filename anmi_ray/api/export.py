"""`anmi export`: copy a run's model to a folder, checked against its seal, with a card from the run's record.

ONNX files of the model are measured by nDCG@10 of the run's held-out queries. `push` uploads an exported folder to the
Hugging Face hub.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.api.runs import Run
from anmi_ray.core import environment
from anmi_ray.core.errors import AnmiError, ConfigError, DataError, StoreError, first_line
from anmi_ray.core.records import QREL, RUN
from anmi_ray.evaluation.significance import LEVEL
from anmi_ray.models.card import Card, text
from anmi_ray.stages import by_judges
from anmi_ray.stages.evaluate import baseline_of
from anmi_ray.store import Artifact
from anmi_ray.store.folders import copy_sealed, new_folder
from anmi_ray.store.runs import collection_of

if TYPE_CHECKING:
    from anmi_ray.models.onnx_files import Numbers
    from anmi_ray.models.reranker import Reranker

MEASURE = "nDCG@10"
MOST_PAIRS = 10_000  # pairs that an ONNX file scores: two minutes for a small model on two cores
TOKEN = "HF_TOKEN"
_OPTION = "--push-to-hub"
_BAD_METADATA = "Invalid metadata in README.md"  # start of the hub client's message
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
    measured = evaluate if evaluate is not None and evaluate.manifest() is not None else None
    rows = None if measured is None else measured.read_json("comparisons.json")
    alone = None if measured is None or rows else by_judges.measurements(measured)
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
    which = f"after step {manifest.get('best_step')} of {manifest.get('steps')}"
    yield "weights", f"{which}{dev}"
    settings = {key: value for key, value in manifest.get("settings", {}).items() if key != "model"}
    yield "settings that differ from the defaults", f"`{json.dumps(settings)}`"
    yield "versions", ", ".join(f"{key} {value}" for key, value in environment.get("versions", {}).items())


def write_onnx(folder: Path, wanted: Sequence[Numbers], artifacts: Mapping[str, Artifact]) -> list[dict[str, Any]]:
    """Write the ONNX files `wanted` of the model in `folder`; return name, size and nDCG@10 of each.

    nDCG@10 is of labelled test queries of the run, else of dev queries, up to MOST_PAIRS, and is compared with the
    run's own scores; missing if the run was not reranked or has no such query. Raises ConfigError as
    `onnx_files.write`.
    """
    from anmi_ray.models import onnx_files
    from anmi_ray.models.kinds import load_reranker

    model = load_reranker(str(folder), threads=environment.cores())
    onnx_files.check(model)
    sizes: dict[Numbers, int] = {}
    for numbers in wanted:
        before = _bytes_under(folder)
        onnx_files.write(model, folder, numbers)
        sizes[numbers] = _bytes_under(folder) - before  # graphs above 2 GiB have several files
    held_out = _held_out(artifacts)
    return [
        {"file": onnx_files.FILES[numbers], "bytes": size}
        | (_measured(onnx_files.reading(model, folder / onnx_files.FILES[numbers]), *held_out) if held_out else {})
        for numbers, size in sizes.items()
    ]


def _bytes_under(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _held_out(artifacts: Mapping[str, Artifact]) -> tuple[str, pa.Table, list[tuple[pa.Table, ...]]] | None:
    """Return split, qrels, and by bucket: queries, the hybrid's run, its top, texts, and the run's own ranking."""
    from anmi_ray.stages.ingest import of_queries
    from anmi_ray.stages.rerank.ranking import SYSTEM
    from anmi_ray.stages.rerank.scoring import Asked

    rerank = artifacts.get("rerank")
    manifest = None if rerank is None else rerank.manifest()
    if rerank is None or manifest is None:
        return None
    ingest, depth = artifacts["ingest"], manifest["depth"]
    buckets = range((ingest.manifest() or {})["buckets"])
    qrels = pa.concat_tables(ingest.read_part("qrels", bucket, QREL) for bucket in buckets)
    labelled = pc.unique(qrels.filter(pc.greater(qrels["grade"], 0))["query_id"])
    for split in ("test", "dev"):
        left = max(1, MOST_PAIRS // depth)
        found: list[tuple[pa.Table, ...]] = []
        for bucket in buckets:
            queries, *tables = Asked(artifacts["retrieve"], ingest, depth, (split,)).of_bucket(bucket)
            queries = queries.filter(pc.is_in(queries["query_id"], value_set=labelled)).sort_by("query_id")[:left]
            left -= queries.num_rows
            runs = of_queries(rerank.read_part("runs", bucket, RUN), queries)
            hybrid, top = (of_queries(table, queries) for table in tables[:2])
            if top.num_rows:
                found.append((queries, hybrid, top, tables[2], runs.filter(pc.equal(runs["system"], SYSTEM))))
        if found:
            queries = pa.concat_tables(part[0] for part in found)
            return split, of_queries(qrels, queries), found
    return None


def _measured(model: Reranker, split: str, qrels: pa.Table, parts: Sequence[tuple[pa.Table, ...]]) -> dict[str, Any]:
    """Return the model's nDCG@10, and its difference to the run's with an interval over queries."""
    from anmi_ray.evaluation import measures, significance
    from anmi_ray.stages.rerank import ranking

    runs: list[pa.Table] = []
    for queries, hybrid, top, texts, own in parts:
        runs += [own, ranking.with_tail(ranking.rerank(top, queries, texts, model, "onnx"), hybrid)]
    metrics = measures.evaluate(pa.concat_tables(runs), qrels, [MEASURE])
    row = significance.compare(metrics, ranking.SYSTEM, ["onnx"], MEASURE)[-1]
    figures = ("queries", "mean", "difference", "difference_low", "difference_high")
    return {"split": split, **{name: getattr(row, name) for name in figures}}


def check_upload(repository: str) -> str:
    """Return the token of the environment. Raises ConfigError without one, or if `repository` is malformed."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ConfigError(first_line(error), _OPTION, "give ORGANISATION/NAME") from None
    token = os.environ.get(TOKEN, "")
    if not token:
        what = f"the hub wants a token, and the environment has no {TOKEN}"
        raise ConfigError(what, _OPTION, f"export {TOKEN} with a token that may write; it is written nowhere")
    return token


def push(folder: Path, repository: str, kind: Literal["model", "dataset"]) -> str:
    """Upload `folder` as one commit; say where it is. A new repository is created as private.

    An existing repository keeps its visibility and loses files that `folder` lacks. HF_ENDPOINT names another hub.
    Raises ConfigError as `check_upload`, or if the hub rejects the card's metadata; StoreError if the hub refuses or
    cannot be reached. The folder stays.
    """
    import httpx2
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    api = HfApi(token=check_upload(repository))
    kept = f"{folder} is written: repeat the command with another folder, or upload it with `hf upload`"
    try:
        address = api.create_repo(repository, repo_type=kind, private=True, exist_ok=True)
        private = api.repo_info(repository, repo_type=kind).private
        message = "Exported by anmi_ray"
        # an older model's files would be read as this one's; the client keeps .gitattributes
        api.upload_folder(
            repo_id=repository, folder_path=folder, repo_type=kind, commit_message=message, delete_patterns="*"
        )
    except HfHubHTTPError as error:
        remedy = f"check that the token of {TOKEN} may write there; {kept}"
        raise StoreError(f"the hub refuses: {first_line(error)}", f"{api.endpoint} {repository}", remedy) from None
    except (httpx2.HTTPError, OfflineModeIsEnabled) as error:
        remedy = f"check the network, HF_ENDPOINT and HF_HUB_OFFLINE; {kept}"
        raise StoreError(f"cannot be reached: {first_line(error)}", api.endpoint, remedy) from None
    except ValueError as error:  # rejected metadata; the client has no class for it
        raise _not_understood(error, folder, api.endpoint, kept) from None
    if private is None:
        return f"on the hub: {address}"
    where = "private on the hub" if private else "public on the hub, as its repository is"
    return f"{where}: {address}"


def _not_understood(error: ValueError, folder: Path, endpoint: str, kept: str) -> AnmiError:
    """Return the error if the hub rejects a card's metadata or does not answer JSON."""
    if not str(error).startswith(_BAD_METADATA):
        remedy = f"check HF_ENDPOINT, and proxies on the way to the hub; {kept}"
        return StoreError(f"expected an answer of the hub, got: {first_line(error)}", endpoint, remedy)
    reasons = [line.strip("- ") for line in str(error).splitlines()[1:]]
    what = f"the hub refuses the card's metadata: {'; '.join(reasons) or 'it does not say why'}"
    if any("license" in reason for reason in reasons):
        return ConfigError(what, "--license", f"give an id of the hub's list, or `other`; {kept}")
    return ConfigError(what, str(folder / "README.md"), f"correct its head; {kept}")
