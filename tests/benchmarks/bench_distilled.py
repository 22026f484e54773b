"""A distilled pairwise judge against sentence_transformers.CrossEncoder.predict: same weights, texts, threads, one run.

    python -m tests.benchmarks.bench_distilled [QUESTIONS [PASSES]] [--device cuda]

A question is a query of Python's own documentation and two of its documents. The judge is asked as in a run: it cuts
the texts to its tokens, tokenises them and answers. The peer gets the texts already cut and filled in, with its
defaults: batches of 32, float32, and no activation, which is its default for several labels. Prints questions per
second (medians of passes taken in turns; 256 questions and 3 passes unless told) and ratios to the peer's default, by
the clock and, for machines with other work, by processor time; ends with an error where a probability differs from the
peer's by more than 1e-2.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from sentence_transformers import CrossEncoder as Peer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.judge import EncoderJudgeConfig
from anmi_ray.core.identity import comparison_id, rng, text_hash
from anmi_ray.core.records import COMPARISON, QUERY, TEXT_OF
from anmi_ray.judging.kinds import distilled
from anmi_ray.judging.kinds.encoder import EncoderEngine, Pairwise, Texts
from anmi_ray.judging.questions import TextQuestions, text_questions
from anmi_ray.models.loading import PACKAGED, resolve
from tests.benchmarks.bench_scoring import processor

DOCUMENTS, DEGREE, LEAST_WORDS, MAX_TOKENS, LIMIT = 16, 8, 12, 192, 1e-2


def questions(count: int) -> TextQuestions:
    """Both orders of so many pairs as make `count`, at least: each query's 16 documents are in eight pairs each."""
    reader = corpus.read(CorpusConfig())
    texts = pa.concat_tables(reader.documents())
    texts = texts.filter(pc.greater_equal(pc.count_substring_regex(texts["text"], r"\S+"), LEAST_WORDS))
    queries = -(-count // (DOCUMENTS * DEGREE))
    asked = reader.queries().slice(0, queries)
    pairs: list[tuple[bytes, bytes, bytes]] = []
    for query in asked["query_id"].to_pylist():
        shown = rng("bench", query).permutation(texts.num_rows)[:DOCUMENTS]
        ids = sorted(texts["doc_id"].take(pa.array(shown)).to_pylist())
        ring = [(i, (i + step) % DOCUMENTS) for i in range(DOCUMENTS) for step in range(1, DEGREE // 2 + 1)]
        pairs += [(query, ids[min(i, j)], ids[max(i, j)]) for i, j in ring]
    pairs = pairs[: -(-count // 2)]
    read = zip(texts["title"].to_pylist(), texts["text"].to_pylist(), strict=True)
    hashes = [text_hash(title, text) for title, text in read]
    return text_questions(
        COMPARISON.table(
            {
                "comparison_id": [comparison_id(*pair) for pair in pairs],
                **{name: [pair[i] for pair in pairs] for i, name in enumerate(("query_id", "doc_a", "doc_b"))},
                "round": [0] * len(pairs),
                "design": ["bench"] * len(pairs),
            }
        ),
        asked.select([field.name for field in QUERY.schema]),
        texts.append_column("text_hash", pa.array(hashes, TEXT_OF.schema.field("text_hash").type)).select(
            [field.name for field in TEXT_OF.schema]
        ),
    )


def write_judge(folder: Path) -> Path:
    """MiniLM with six layers and a random head of three labels, as a distilled judge's folder."""
    source, form = resolve(PACKAGED).path_or_id, distilled.DistilledForm("ternary", max_tokens=MAX_TOKENS)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(
        source, id2label=dict(enumerate(form.labels)), label2id={label: i for i, label in enumerate(form.labels)}
    )
    torch.nn.init.normal_(model.classifier.weight, std=0.5)  # probabilities that differ
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, model_max_length=MAX_TOKENS).save_pretrained(folder)
    (folder / distilled.FILE).write_text(form.to_json())
    return folder


def answered(engine: EncoderEngine, of: TextQuestions) -> np.ndarray:
    """Probabilities [N, 3] in the questions' order."""
    handed: list[pa.Table] = []
    engine.ask(of, iter([np.arange(len(of.ids))]), handed.append)
    table = pa.concat_tables(handed)
    keys = ("query_hash", "first_hash", "second_hash")
    found = {key: row for row, key in enumerate(zip(*(table[key].to_pylist() for key in keys), strict=True))}
    wanted = zip(*(of.hashes(np.arange(len(of.ids)))[key].to_pylist() for key in keys), strict=True)
    logs = np.stack([table[f"log_{name}"].to_numpy() for name in ("first", "second", "tie")], axis=1)
    return np.exp(logs[[found[key] for key in wanted]])


def column(rows: list[tuple[float, float]], number: int) -> list[float]:
    """One number of each row."""
    return [row[number] for row in rows]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="?", type=int, default=256)
    parser.add_argument("passes", nargs="?", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    asked = parser.parse_args()
    count, passes, device = asked.questions, asked.passes, asked.device
    threads = 1  # of an actor that asks
    torch.set_num_threads(threads)
    of = questions(count)
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_judge(Path(scratch))

        def engine(dtype: str) -> EncoderEngine:
            given = {"kind": "encoder", "model": str(folder), "form": "pairwise", "dtype": dtype}
            return EncoderEngine(EncoderJudgeConfig.model_validate({**given, "gpus": float(device == "cuda")}))

        engines = {f"anmi_ray, {dtype}": engine(dtype) for dtype in ("float32", "bfloat16")}
        judge = next(iter(engines.values())).form
        assert isinstance(judge, Pairwise)
        texts = Texts(of)
        rows = zip(of.query.tolist(), of.first.tolist(), of.second.tolist(), strict=True)
        filled, second = judge.truncator([(texts.query(q), texts.document(a), texts.document(b)) for q, a, b in rows])
        assert second is not None
        pairs = list(zip(filled, second, strict=True))
        peers = {
            "sentence_transformers": Peer(str(folder), device=device),
            "the same in bfloat16": Peer(str(folder), device=device, model_kwargs={"dtype": torch.bfloat16}),
        }
        runs: dict[str, Callable[[], np.ndarray]] = {
            name: lambda peer=peer: (
                peer.predict(pairs, show_progress_bar=False, convert_to_tensor=True).float().cpu().numpy()
            )
            for name, peer in peers.items()
        }
        runs |= {name: lambda one=one: answered(one, of) for name, one in engines.items()}
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        found: dict[str, np.ndarray] = {}
        for _ in range(1 + passes):  # the first pass warms up
            for name, run in runs.items():
                begin, used = time.perf_counter(), time.process_time()
                found[name] = run()
                seconds[name].append((time.perf_counter() - begin, time.process_time() - used))
    default = "sentence_transformers"
    logits = found[default].astype(np.float64)
    wanted = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    tokens = np.array([len(ids) for ids in judge.model.encode(filled, second)["input_ids"]])
    print(
        f"{len(of.ids)} questions of {tokens.min()} to {tokens.max()} tokens, {tokens.mean():.0f} on average, "
        f"{threads} threads, {processor(device)}"
    )
    passed, used = ({name: statistics.median(column(v[1:], i)) for name, v in seconds.items()} for i in (0, 1))
    for name in runs:
        print(
            f"{name:24} {len(of.ids) / passed[name]:8.1f} questions/s  {passed[default] / passed[name]:5.2f} x, "
            f"of processor time {used[default] / used[name]:5.2f} x",
            end="",
        )
        far = np.abs(found[name] - wanted).max() if name in engines else None
        print("" if far is None else f"  largest difference of a probability {far:.1e}", flush=True)
        assert far is None or far <= LIMIT, f"{name} differs from {default} by {far}"


if __name__ == "__main__":
    main()
