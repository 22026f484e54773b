"""What do approximate indexes pay in recall for their speed? IVF-PQ and HNSW against the exact search, over real texts.

    python -m jobs.studies.dense_indexes [--data NAME=FOLDER ...] [--passages N] [--model NAME] [--root results]
        [--out .]

The documents of the collections (BEIR layout) and of the standard library's documentation are one shard, their queries
ask it; with --passages every run of 1 to N neighbouring sentences is a document in their place, for a larger shard.
Vectors are kept under ROOT. Every index is built as retrieve builds it, and searched by one thread for the best
100 of each query, with the settings that trade recall for time: probed lists, effort, how many proposals are rescored.
Prints the recall of the exact ten and hundred best, milliseconds a query (median of rounds in which the settings take
turns), how many times as fast as the exact search that is, and the bytes of a document in the index; draws recall
against speed.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from markupsafe import Markup
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from anmi_ray import corpus, environment, identity
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.retrieve import DenseConfig, HnswIndex, IvfPqIndex, RetrieveConfig
from anmi_ray.errors import DataError
from anmi_ray.evaluation import svg
from anmi_ray.models import loading
from anmi_ray.models.cross_encoder import resolve_precision
from anmi_ray.models.encoder import Encoder
from anmi_ray.records import DOCUMENT, QUERY
from anmi_ray.retrieval import dense, shard
from anmi_ray.stages.indexes import content_of_documents, shelf_of
from anmi_ray.store import Store
from jobs.studies.ending import ending
from jobs.studies.retrieved import folders

DEPTH, ROUNDS, QUERIES = 100, 5, 500
PROBES, RESCORED, EFFORTS = (1, 2, 4, 8, 16, 32, 64, 128), (1.0, 4.0, 16.0), (100, 200, 400, 800)
_SENTENCE, _SHORT = re.compile(r"(?<=[.!?])\s+"), 30  # characters; what is shorter is a heading, a name, a number
_INK = {"IVF-PQ, 1 time": "rest", "IVF-PQ, 4 times": "second", "IVF-PQ, 16 times": "main", "HNSW": "third"}
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 760.0, 430.0, 70.0, 118.0, 370.0
_STYLE = "svg .head { font-size: 17px; font-weight: 600; fill: var(--ink); }\n" + "".join(
    f"svg .dot.{name} {{ fill: var(--{name}); }} svg .key.{name} {{ fill: var(--{name}); }} "
    f"svg .way.{name} {{ stroke: var(--{name}); stroke-width: 1.6; fill: none; }}\n"
    for name in _INK.values()
)


@dataclass(frozen=True)
class Measured:
    """A way of searching: its series and setting, recall of the exact best, and what it costs."""

    series: str
    setting: str
    recall_10: float
    recall_100: float
    query_ms: float
    faster: float
    document_bytes: float


Search = Callable[[NDArray[np.float32], int], tuple[NDArray[np.int64], NDArray[np.float64]]]


def gathered(data: Mapping[str, str], passages: int | None = None) -> tuple[pa.Table, list[str]]:
    """All documents, whose ids are told apart by their collection, and queries: at most QUERIES, by hash.

    With `passages`, the runs of up to so many neighbouring sentences of documents in their place, each text once.
    """
    tables, asked = [DOCUMENT.empty()], set[str]()
    configs = {"pydocs": CorpusConfig()}
    configs |= {
        name: CorpusConfig(reader="beir", path=folder, max_reject_fraction=1.0) for name, folder in data.items()
    }
    for name, config in configs.items():
        reader = corpus.read(config)
        for table in reader.documents():
            ids = identity.id_array(identity.doc_id(f"{name} {key}") for key in table["external_id"].to_pylist())
            tables.append(table.set_column(0, DOCUMENT.schema.field(0), ids))
        asked |= set(QUERY.check(reader.queries(), name)["text"].to_pylist())
    documents = pa.concat_tables(tables)
    if passages is not None:
        documents = passages_of(documents["text"].to_pylist(), passages)
    if documents.num_rows < dense.FEWEST:
        raise DataError(
            f"{documents.num_rows} documents: an index is built of {dense.FEWEST:,} or more",
            "--data",
            "add a collection",
        )
    return documents, sorted(asked, key=lambda text: identity.digest("asked", text))[:QUERIES]


def passages_of(texts: Iterable[str], longest: int) -> pa.Table:
    """The Document table of all runs of 1 to `longest` neighbouring sentences, what is no sentence left out."""
    runs = dict[str, None]()
    for text in texts:
        sentences = [part for part in _SENTENCE.split(text) if len(part) >= _SHORT]
        for length in range(1, longest + 1):
            runs.update((" ".join(sentences[i : i + length]), None) for i in range(len(sentences) - length + 1))
    ids = identity.id_array(map(identity.doc_id, runs))
    names = [f"p{number}" for number in range(len(runs))]
    return DOCUMENT.table({"doc_id": ids, "external_id": names, "title": [""] * len(runs), "text": list(runs)})


def measure(doc_Nd: NDArray[np.float32], query_Qd: NDArray[np.float32], folder: Path) -> list[Measured]:
    """The exact search and every setting of the indexes."""
    ways: dict[tuple[str, str], tuple[Search, float]] = {
        ("exact", ""): (dense.Flat(doc_Nd).search, 4.0 * doc_Nd.shape[1])
    }
    ivfpq, hnsw = IvfPqIndex(kind="ivfpq"), HnswIndex(kind="hnsw", rescored=1.0)
    for config in (ivfpq, hnsw):
        dense.build(folder / config.kind, doc_Nd, config, identity.seed("dense indexes"))
    for rescored in RESCORED:
        for probes in PROBES:
            config = ivfpq.model_copy(update={"probes": probes, "rescored": rescored})
            found = dense.Approximate(folder / "ivfpq", config, doc_Nd)
            times = "time" if rescored == 1 else "times"
            ways[f"IVF-PQ, {rescored:.0f} {times}", f"{probes} probes"] = (
                found.search,
                _each(folder / "ivfpq", doc_Nd),
            )
    for effort in EFFORTS:
        found = dense.Approximate(folder / "hnsw", hnsw.model_copy(update={"search_effort": effort}), doc_Nd)
        ways["HNSW", f"effort {effort}"] = (found.search, _each(folder / "hnsw", doc_Nd))
    exact = ways["exact", ""][0](query_Qd, DEPTH)[0]
    taken: dict[tuple[str, str], list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (search, _) in ways.items():
            begin = time.perf_counter()
            search(query_Qd, DEPTH)
            taken[name].append((time.perf_counter() - begin) / len(query_Qd) * 1000)
    base = statistics.median(taken["exact", ""])
    measured = []
    for name, (search, size) in ways.items():
        index, cost = search(query_Qd, DEPTH)[0], statistics.median(taken[name])
        measured.append(Measured(*name, recall(index, exact, 10), recall(index, exact, DEPTH), cost, base / cost, size))
    return measured


def recall(found_QK: NDArray[np.int64], exact_QK: NDArray[np.int64], depth: int) -> float:
    """Share of the exact `depth` best that are among the `depth` found, mean over queries."""
    both = zip(found_QK[:, :depth].tolist(), exact_QK[:, :depth].tolist(), strict=True)
    return float(np.mean([len(set(found) & set(exact)) / depth for found, exact in both]))


def _each(path: Path, doc_Nd: NDArray[np.float32]) -> float:
    return path.stat().st_size / len(doc_Nd)


def picture(measured: Sequence[Measured], documents: int) -> str:
    """Recall of the hundred best against how many times as fast as the exact search, as SVG."""
    shown = [one for one in measured if one.series in _INK]
    x = svg.axis([math.log10(max(one.faster, 0.05)) for one in shown] + [0.0], _LEFT, _WIDTH - 24, 0.04)
    y = svg.axis([one.recall_100 for one in shown] + [1.0], _BOTTOM, _TOP, 0.04)
    head = svg.text(24, 34, f"Approximate indexes against the exact search, {documents:,} documents", "head", "start")
    note = "Share of the exact 100 best that are found; points are settings; one thread; exact rescoring included"
    parts = [head, svg.text(24, 58, note, "label", "start")]
    parts.append(svg.legend([(f"key {css}", f"{name} rescored" if "IVF" in name else name)
                             for name, css in _INK.items()], 24, 84))  # fmt: skip
    parts += [svg.left_axis(y, _LEFT, _WIDTH - 24, ""), svg.line(_LEFT, _BOTTOM, _WIDTH - 24, _BOTTOM, "axis")]
    for times in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200):
        if x.low <= (at := math.log10(times)) <= x.high:
            parts += [svg.line(x(at), _TOP, x(at), _BOTTOM, "grid"), svg.text(x(at), _BOTTOM + 18, f"{times:g}")]
    parts.append(svg.text((_LEFT + _WIDTH) / 2, _BOTTOM + 42, "times as fast as the exact search", "label"))
    parts += [_series(name, [one for one in shown if one.series == name], x, y) for name in _INK]
    return svg.standalone(_WIDTH, _HEIGHT, svg.join(parts), _STYLE)


def _series(name: str, measured: Sequence[Measured], x: svg.Axis, y: svg.Axis) -> Markup:
    points = [(x(math.log10(max(one.faster, 0.05))), y(one.recall_100)) for one in measured]
    parts = [svg.path(points, f"way {_INK[name]}")]
    for one, (at, height) in zip(measured, points, strict=True):
        said = f"{name}, {one.setting}: {one.recall_100:.3f}, {one.faster:.1f} times as fast"
        parts.append(svg.circle(at, height, 3.4, f"dot {_INK[name]}", said))
    return svg.join(parts)


def show(measured: Sequence[Measured]) -> None:
    """Print the table."""
    table = Table(box=None)
    for column in ("index", "setting", "recall of 10", "of 100", "ms a query", "times as fast", "bytes a document"):
        table.add_column(column, justify="left" if column in ("index", "setting") else "right")
    for one in measured:
        figures = (f"{one.recall_10:.3f}", f"{one.recall_100:.3f}", f"{one.query_ms:.2f}", f"{one.faster:.1f}")
        table.add_row(one.series, one.setting, *figures, f"{one.document_bytes:.0f}")
    Console().print(table)


@ending("dense_indexes")
def main(arguments: Sequence[str] | None = None) -> None:
    """Embed what is not there, build, search, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", default=[], help="NAME=FOLDER of a collection in BEIR layout")
    parser.add_argument("--passages", type=int, choices=range(1, 6), help="sentences of the longest passage")
    parser.add_argument("--model", default=DenseConfig().model, help="the encoder")
    parser.add_argument("--root", default="results", help="folder of vectors and results")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the figure")
    given = parser.parse_args(arguments)
    store = Store(given.root)
    name = "dense-indexes" if given.passages is None else f"dense-indexes-passages-{given.passages}"
    figure, study = f"{name}.svg", f"studies/{name}/study.json"
    config = RetrieveConfig(dense=DenseConfig(model=given.model))
    documents, asked = gathered(folders(given.data) if given.data else {}, given.passages)
    precision = resolve_precision(config.dense.dtype, torch.device("cpu"))
    source = loading.resolve(given.model)
    encoder = Encoder(source, config.dense.max_tokens, precision, environment.cores())
    with shelf_of(store, content_of_documents(documents)) as shelf:
        doc_Nd = shard.document_vectors(documents, config, encoder, shelf)
    with tempfile.TemporaryDirectory(prefix="anmi-indexes-") as folder:
        measured = measure(doc_Nd, encoder.encode(asked), Path(folder))
    show(measured)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / figure).write_text(picture(measured, len(doc_Nd)), encoding="utf-8")
    rows: dict[str, Any] = {
        "documents": len(doc_Nd),
        "rows": [asdict(one) for one in measured],
        **environment.describe(),
    }
    store.publish_json(study, rows)
    print(f"\n-> {store.where(study)}\n-> {given.out / figure}")


if __name__ == "__main__":
    main()
