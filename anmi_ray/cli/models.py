"""`anmi export`, `anmi rerank`, `anmi evaluate` and `anmi serve`: use a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anmi_ray.cli.flags import COMMAND_LINE, JsonOption, OwnDocumentOption, PrecisionOption, RunRootOption
from anmi_ray.core.errors import ConfigError

if TYPE_CHECKING:
    from anmi_ray.models.onnx_files import Numbers


def export(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="name of a run with a trained model")],
    to: Annotated[Path | None, typer.Option(help="folder for the model: new or empty")] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="folder for judgments, ratings and gaps as a dataset: new or empty")
    ] = None,
    texts: Annotated[bool, typer.Option("--texts", help="include the documents' texts in the dataset")] = False,
    license_: Annotated[
        str | None, typer.Option("--license", metavar="ID", help="license in the card, such as apache-2.0")
    ] = None,
    title: Annotated[str | None, typer.Option(help="name of the model in the card (default: the run's)")] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="write onnx/model.onnx, and its effect on nDCG@10")] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="write onnx/model_int8.onnx in 8-bit integers for CPUs; implies --onnx")
    ] = False,
    hub: Annotated[
        str | None,
        typer.Option("--push-to-hub", metavar="ORG/NAME", help="upload, private if new, with the token in HF_TOKEN"),
    ] = None,
    root: RunRootOption = "results",
) -> None:
    """Export a run's model (--to) as a Hugging Face folder, or its judgments (--dataset) as Parquet, with a card."""
    from anmi_ray.api import export as exporting
    from anmi_ray.api.dataset_export import export_dataset
    from anmi_ray.api.runs import Run
    from anmi_ray.cli.console import working

    if to is None and dataset is None:
        raise ConfigError("expected --to or --dataset", COMMAND_LINE, "add --to FOLDER, --dataset FOLDER, or both")
    if to is None and (onnx or int8):
        raise ConfigError("--onnx and --int8 need --to", COMMAND_LINE, "add --to FOLDER")
    if dataset is None and texts:
        raise ConfigError("--texts needs --dataset", COMMAND_LINE, "add --dataset FOLDER")
    if hub is not None:
        if to is not None and dataset is not None:
            raise ConfigError("--push-to-hub uploads one folder", COMMAND_LINE, "give --to or --dataset, not both")
        exporting.check_upload(hub)
    if dataset is not None:
        with working("writing the dataset"):
            export_dataset(run_name, root, dataset, license_, title, texts)
        print(f"dataset: {dataset}")
    if to is not None:
        files: list[Numbers] = [*(("float32",) if onnx or int8 else ()), *(("int8",) if int8 else ())]
        with working("copying and checking the model"):
            exporting.export(run_name, root, to, license_, title, files)
        print(f"model: {to}")
        if (verdict := Run(run_name, root).verdict()) and not verdict.startswith("Deploy"):
            print(verdict)
    if hub is not None and (folder := to or dataset) is not None:
        with working("uploading"):
            pushed = exporting.push(folder, hub, "dataset" if to is None else "model")
        print(pushed)


def rerank(
    model: Annotated[str, typer.Option(help="folder of a model, a run, or a reranker or embedder of the hub")],
    collection: Annotated[Path, typer.Option(help="folder in BEIR layout (corpus, queries), or a run")],
    ranking: Annotated[Path, typer.Option(help="TREC run to rerank, or -")],
    out: Annotated[Path, typer.Option(help="TREC run to write, or -")],
    depth: Annotated[int, typer.Option(min=1, help="top documents per query to score")] = 100,
    fuse: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE", help="TREC run of a system in the model's fusion")
    ] = None,
    min_relevance: Annotated[
        float | None, typer.Option(min=0, max=1, metavar="P", help="drop documents with P(relevant) below P")
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(help="write the ranking as Parquet, CSV or JSONL, with P(relevant) (relevance) if known"),
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="threads; 0: all cores")] = 0,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="device of the model; auto: a GPU if available")
    ] = "auto",
    precision: PrecisionOption = "float32",
    own_document: OwnDocumentOption = "same-text",
    root: RunRootOption = "results",
) -> None:
    """Rerank a TREC run with a trained model, fused with the scores of other systems (--fuse) if requested.

    Scores, not the written ranks, decide which documents are on top; ties go to the lower rank. P(relevant) comes from
    the calibration of the run, or of the folder's relevance.json.
    """
    from anmi_ray.api import reranking
    from anmi_ray.cli import console
    from anmi_ray.tables import formats

    partners = _named(fuse or ())
    outputs = {"out": out, "table": table}
    formats.check_outputs(outputs, [ranking, *partners.values()], any_name=("out",))
    with console.working(f"reranking {ranking.name}"):
        queries = reranking.rerank_run(
            model,
            collection,
            ranking,
            out,
            depth,
            threads,
            partners,
            console.note,
            min_relevance=min_relevance,
            table_file=table,
            device=device,
            precision=precision,
            root=root,
            own_document=own_document,
        )
    counts = f"{queries.rows_in:,} queries, {queries.rows_out:,} reranked, {queries.rejected:,} rejected"
    print(f"{counts} -> {out}", file=console.beside(outputs))


def _named(options: Sequence[str]) -> dict[str, Path]:
    """Return the files of --fuse by name. Raise ConfigError if one is malformed."""
    found: dict[str, Path] = {}
    for text in options:
        name, _, path = text.partition("=")
        if not name or not path or name in found:
            raise ConfigError(
                f"expected NAME=FILE with distinct names, got {text!r}", "--fuse", "--fuse bm25=bm25.trec"
            )
        found[name] = Path(path)
    return found


def evaluate(
    ranking: Annotated[list[Path], typer.Option(help="TREC run, or -; may be repeated")],
    collection: Annotated[Path | None, typer.Option(help="folder in BEIR layout with qrels/, or a run")] = None,
    qrels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="relevance grades: TREC qrels or BEIR's .tsv, or -")
    ] = None,
    split: Annotated[str, typer.Option(help="qrels of the collection: qrels/<split>.tsv")] = "test",
    measures: Annotated[str, typer.Option(help="comma-separated")] = "nDCG@10,MRR@10,Recall@100",
    own_document: OwnDocumentOption = "same-text",
    root: RunRootOption = "results",
    as_json: JsonOption = False,
) -> None:
    """Measure TREC runs, with intervals, and compare all systems with the first by a paired test.

    Grades come from --qrels, or from the collection, which also checks ids. A system is named by its tag, or FILE:TAG
    if several files share the tag. Scores decide, not the written ranks; ties as in trec_eval: scores in 32 bits, then
    the document id, descending.
    """
    from anmi_ray.api import measuring
    from anmi_ray.cli import console

    names = list(dict.fromkeys(name.strip() for name in measures.split(",") if name.strip()))
    if not names:
        raise ConfigError("--measures: expected at least one", COMMAND_LINE, "write --measures nDCG@10,AP")
    with console.working("measuring"):
        found = measuring.evaluate(collection, ranking, split, names, console.note, qrels, own_document, root)
    if as_json:
        print(console.as_json(found))
        return
    console.stdout().print(console.systems_table(found["systems"], found["measures"], found["baseline"]))


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="folder of a model, a run, or org/model of the hub")],
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0: all of this machine's")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port; 0: a free one")] = 8000,
    replicas: Annotated[int, typer.Option(min=1, help="processes that score")] = 1,
    most_replicas: Annotated[
        int, typer.Option(min=0, help="maximum number of processes under load; 0: --replicas")
    ] = 0,
    threads: Annotated[int, typer.Option(min=0, help="threads per process; 0: share all cores")] = 0,
    gpus: Annotated[float, typer.Option(min=0, max=1, metavar="SHARE", help="GPU share per process; 0: CPU")] = 0,
    precision: PrecisionOption = "float32",
    key_env: Annotated[
        str, typer.Option(metavar="NAME", help="environment variable with the key that clients must send")
    ] = "",
    cors_origins: Annotated[
        str, typer.Option(metavar="ORIGINS", help="origins of pages that may send requests, by commas; *: any")
    ] = "",
    max_documents: Annotated[int, typer.Option(min=1, help="maximum documents per request")] = 1000,
    max_characters: Annotated[int, typer.Option(min=1, help="maximum characters per query or document")] = 100_000,
    max_body_mb: Annotated[float, typer.Option(min=0.001, help="maximum size of a request, in MB")] = 8.0,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="seconds after which a request is abandoned")] = 60,
    max_waiting: Annotated[int, typer.Option(min=1, help="maximum queued texts; more are answered with 429")] = 10_000,
    batch_texts: Annotated[int, typer.Option(min=1, help="texts per batch")] = 128,
    root: RunRootOption = "results",
) -> None:
    """Serve a trained model over HTTP to clients of Cohere, Jina, vLLM, TEI and OpenAI; for a run, also its search.

    Ctrl-C or SIGTERM stops it after the current answers; a second one stops at once.
    """
    from anmi_ray.cli import console
    from anmi_ray.serving import start
    from anmi_ray.serving.settings import validated

    settings = {name: value for name, value in context.params.items() if name not in ("host", "port")}
    start.serve(validated(settings), host, port, console.stdout().print)
