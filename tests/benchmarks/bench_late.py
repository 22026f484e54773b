"""Late interaction against sentence_transformers.MultiVectorEncoder: training and scoring, the same start, in one run.

    python -m tests.benchmarks.bench_late [LISTS] [--queries 20] [--passes 3] [--only scoring] [--device cuda]

Training: lists of a reduced quickstart's documents (an anchor and one mined negative), 32 a step, the other lists'
documents as negatives, one epoch from raw texts to the last step, the same learning rate and temperature; the peer by
MultiVectorMultipleNegativesRankingLoss of the mean maximum. Each in its default precision, theirs in bfloat16 too. Ours
also trains the pooled vectors. Scoring: the hybrid's top 100 of held-out queries; both encode each distinct text once,
theirs then takes the maxima query by query (`similarity`). Prints medians of passes
taken in turns, by the clock and by processor time, and by how much scores differ. The peer's trainer needs datasets and
accelerate (pip install 'anmi-ray[bench]').
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import MultiVectorEncoder as Peer

from anmi_ray.config.load import validate
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.core import environment
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.models.reranker import distinct
from anmi_ray.stages.rerank.ranking import pairs_of
from anmi_ray.training.loop import train
from anmi_ray.training.training_set import prepare
from tests.benchmarks.bench_scoring import processor
from tests.benchmarks.bench_training import MODEL, OURS, PEER, Lists, in_words, lacks_the_peer, mined

MAX_TOKENS, NEGATIVES, DEPTH = 128, 1, 100
T = TypeVar("T")


def settings() -> TrainConfig:
    """The student's usual ones, without held-out queries."""
    return TrainConfig.model_validate(
        {"student": "late-interaction", "model": MODEL, "max_tokens": MAX_TOKENS, "engine": "ddp", "dev_points": ()}
    )


def whole_steps(lists: Lists) -> Lists:
    """As many lists as fill steps: both then take equally many."""
    per_step = settings().lists_per_step
    return replace(lists, examples=lists.examples.slice(0, lists.examples.num_rows // per_step * per_step))


def ours(lists: Lists, device: str) -> LateInteraction:
    """The student after one epoch."""
    model = LateInteraction.load(MODEL, max_tokens=MAX_TOKENS, device=device)
    data = prepare([lists.examples], [lists.texts], [lists.queries], model.pairs)
    return train(
        model, data, None, settings(), TrainExecution(threads=environment.cores(), use_gpu=device == "cuda")
    ).model


def theirs(lists: Lists, start: Path, device: str, bf16: bool) -> Peer:
    """The peer after one epoch: its trainer's defaults but for batch, learning rate, temperature and precision."""
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from sentence_transformers.multi_vector_encoder import (
        MultiVectorEncoderTrainer,
        MultiVectorEncoderTrainingArguments,
    )
    from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
    from sentence_transformers.multi_vector_encoder.scoring import mean_colbert_scores

    config = settings()
    peer = Peer(str(start), device=device)
    loss = MultiVectorMultipleNegativesRankingLoss(
        peer, scale=1.0 / config.start_temperature, similarity_fct=mean_colbert_scores
    )
    with tempfile.TemporaryDirectory() as scratch:
        arguments = MultiVectorEncoderTrainingArguments(
            output_dir=scratch, num_train_epochs=1, per_device_train_batch_size=config.lists_per_step,
            learning_rate=config.learning_rate, warmup_steps=0.1, use_cpu=device == "cpu",
            bf16=bf16, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        rows = in_words(lists)
        columns = {"query": [query for query, _ in rows]}
        columns |= {f"document_{k}": [docs[k] for _, docs in rows] for k in range(1 + NEGATIVES)}
        data = Dataset.from_dict(columns)
        MultiVectorEncoderTrainer(model=peer, args=arguments, train_dataset=data, loss=loss).train()
    return peer


def scores_of(peer: Peer, queries: list[str], documents: list[str]) -> NDArray[np.float32]:
    """The peer's scores float32[N] of pairs; each distinct text is encoded once."""
    (asked, query_N), (read, document_N) = distinct(queries), distinct(documents)
    query = peer.encode_query(asked, show_progress_bar=False)
    document = peer.encode_document(read, show_progress_bar=False)
    scores = np.zeros(len(queries), dtype=np.float32)
    for q in range(len(asked)):
        rows = np.flatnonzero(query_N == q)
        scores[rows] = peer.similarity([query[q]], [document[d] for d in document_N[rows]])[0].cpu().numpy()
    return scores


def turns(runs: Mapping[str, Callable[[], T]], passes: int) -> tuple[dict[str, tuple[float, float]], dict[str, T]]:
    """Median seconds by the clock and of processor time of every run's `passes`, taken in turns; what the last gave."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    made: dict[str, T] = {}
    for _ in range(passes):
        for name, run in runs.items():
            begin = time.perf_counter(), time.process_time()
            made[name] = run()
            spent[name].append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    medians = {name: tuple(map(statistics.median, zip(*each, strict=True))) for name, each in spent.items()}
    return {name: (clock, processor) for name, (clock, processor) in medians.items()}, made


def table(count: int, of: str, seconds: Mapping[str, tuple[float, float]]) -> None:
    """Print rates, and how many times as fast as the peer's default each is by both measures of time."""
    first = seconds[next(name for name in seconds if name.startswith(PEER))]
    for name, (clock, used) in seconds.items():
        by_both = f"{first[0] / clock:5.2f} x by the clock, {first[1] / used:5.2f} x by processor time"
        print(f"{name:32} {count / clock:8.1f} {of}/s {by_both}", flush=True)


def training(lists: Lists, start: Path, device: str, passes: int) -> None:
    """Print how fast each trains."""
    runs: dict[str, Callable[[], Any]] = {
        OURS: partial(ours, lists, device),
        PEER: partial(theirs, lists, start, device, False),
        f"{PEER}, bf16": partial(theirs, lists, start, device, True),
    }
    seconds, _ = turns(runs, passes)
    count = lists.examples.num_rows
    print(f"training: {count} lists of {1 + NEGATIVES} documents, {settings().lists_per_step} a step")
    table(count * (2 + NEGATIVES), "texts", seconds)


def scoring(lists: Lists, start: Path, device: str, count: int, passes: int) -> None:
    """Print how fast each scores the documents of `count` queries, and how far the scores are apart."""
    run = lists.run.slice(0, count * DEPTH)
    queries, documents = pairs_of(run, lists.queries, lists.texts)
    runs: dict[str, partial[NDArray[np.float32]]] = {}
    for dtype in ("bfloat16", "float32"):
        model = LateInteraction.load(
            MODEL, max_tokens=MAX_TOKENS, threads=environment.cores(), dtype=dtype, device=device
        )
        runs[f"{OURS}, {dtype}"] = partial(model.score, queries, documents)
    for dtype in ("float32", "bfloat16"):
        peer = Peer(str(start), device=device, model_kwargs={"dtype": dtype})
        runs[f"{PEER}, {dtype}"] = partial(scores_of, peer, queries, documents)
    for one in runs.values():
        one.func(*one.args[:-2], queries[:8], documents[:8])  # warms up
    seconds, scores = turns(runs, passes)
    print(f"scoring: {len(queries)} pairs of {len(set(queries))} queries and {len(set(documents))} documents")
    table(len(queries), "pairs", seconds)
    for dtype in ("float32", "bfloat16"):
        difference = np.abs(scores[f"{OURS}, {dtype}"] - scores[f"{PEER}, {dtype}"]).max()
        print(f"largest difference of a {dtype} score from the peer's: {difference:.1e}")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="?", type=int, default=128)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", choices=("scoring", "training"))
    given = parser.parse_args()
    from anmi_ray.runtime.tasks import ray_session

    torch.set_num_threads(environment.cores())
    with tempfile.TemporaryDirectory() as root:
        with ray_session(validate({"execution": {"root": root}}, "bench_late").execution):
            lists = whole_steps(mined(root, given.lists, NEGATIVES, DEPTH, DEPTH))
        start = LateInteraction.load(MODEL, max_tokens=MAX_TOKENS).export(Path(root) / "start")
        print(f"texts of at most {MAX_TOKENS} tokens, {environment.cores()} cores, {processor(given.device)}")
        if given.only != "training":
            scoring(lists, start, given.device, given.queries, given.passes)
        if given.only != "scoring" and not lacks_the_peer():
            training(lists, start, given.device, given.passes)


if __name__ == "__main__":
    main()
