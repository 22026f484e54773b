"""What engines save where prompts begin alike: tokens of prompts computed, questions in their order, and shuffled.

    python tests/benchmarks/bench_prefixes.py [DOCUMENTS]

Both orders of a k-regular graph (k = 8) over DOCUMENTS documents of 300 tokens (96: 768 prompts) go through
`stages.judge.vllm` to an engine on the CPU, whose cache holds 1,000 blocks of 32 tokens: far less than all documents.
The engine's own counters say how many tokens its prompts had and how many of them it found in its cache; it computed
the rest. Printed are the share of all tokens, and the share of what follows the fixed instructions, which begin every
prompt and are found in any order.
"""

from __future__ import annotations

import logging
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics
from urllib.request import urlopen

import numpy as np
import ray

from anmi_ray.comparisons.graph import k_regular
from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.vllm import VllmJudgeConfig
from anmi_ray.core.identity import rng
from anmi_ray.judging import kinds
from anmi_ray.judging.kinds.vllm import Requests, examine
from anmi_ray.judging.questions import TextQuestions
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages.judge.dispatch import log_of
from anmi_ray.stages.judge.sources import QuestionSources
from anmi_ray.store import Store
from tests.benchmarks.bench_judging import quiet
from tests.models.tiny import write_tiny_llm
from tests.stages.texts import ask, write_questions

DEGREE, TOKENS, BLOCKS, BLOCK_SIZE = 8, 300, 1000, 32
COUNTER = re.compile(
    r"^ray_vllm_(prompt_tokens|prefix_cache_queries|prefix_cache_hits)_total\{.*\} (\S+)$", re.MULTILINE
)


class Shuffled(QuestionSources):
    """The same questions in an order drawn by hash."""

    def questions(self, bucket: int) -> TextQuestions:
        """All questions of a bucket."""
        sorted_ = super().questions(bucket)
        order = rng("shuffled", bucket).permutation(len(sorted_.query))
        moved = {name: getattr(sorted_, name)[order] for name in ("query", "first", "second", "ids")}
        return replace(sorted_, **moved)


def counters(port: int) -> Counter[str]:
    """The engines' counters, summed over all that ever ran here."""
    text = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    found: Counter[str] = Counter()
    for name, value in COUNTER.findall(text):
        found[name] += int(float(value))
    return found


def settled(port: int, before: Counter[str], tokens: int) -> Counter[str]:
    """What was counted since, once it says that all prompts' tokens were seen; metrics come every few seconds."""
    found: Counter[str] = Counter()
    for _ in range(60):
        found = Counter({name: value - before[name] for name, value in counters(port).items()})
        if found["prompt_tokens"] >= tokens:
            break
        time.sleep(1.0)
    return found


def questions(store: Store, documents: int) -> QuestionSources:
    """One query with a k-regular graph over so many documents, each longer than TOKENS."""
    words = " ".join(topics.values()).split()
    texts = [" ".join(words[i * 250 : (i + 1) * 250]) for i in range(documents)]
    edges = np.asarray(k_regular(documents, DEGREE, rng("bench", 0))).tolist()
    return write_questions(store, "bench", [[("which statement is about names?", texts, [tuple(e) for e in edges])]])


def fixed(judge: VllmJudgeConfig, sources: QuestionSources) -> int:
    """Tokens that begin every prompt, in whole blocks."""
    asked = sources.questions(0)
    tokens = Requests(examine(judge)).of(asked, np.arange(len(asked.query)), 0).field("tokenized_prompt").to_pylist()
    least, most = min(tokens), max(tokens)  # what these two share, all share
    common = next(i for i, (a, b) in enumerate(zip(least, most, strict=False)) if a != b)
    return common // BLOCK_SIZE * BLOCK_SIZE


def measure(name: str, kind: type[QuestionSources], model: Path, folder: Path, documents: int, port: int) -> None:
    """Ask all in one order, and print what was computed."""
    store = Store(str(folder / name))
    made = questions(store, documents)
    sources = kind(made.compare, made.retrieve, made.ingest)
    execution = {
        "device": "cpu",
        "environment": {"VLLM_CPU_KVCACHE_SPACE": "1"},
        "metrics": True,
    }
    engine = {
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks_override": BLOCKS,
        "enforce_eager": True,
        "max_num_seqs": 64,
    }
    prompt = {"document_tokens": TOKENS}
    judge = VllmJudgeConfig.model_validate(
        {"kind": "vllm", "name": "llm", "model": str(model), "prompt": prompt, "execution": execution}
        | {"engine_kwargs": engine}
    )
    context = Context(store, ExecutionConfig(root=store.root, buckets=1), 1, 0, quiet)
    before, begin = counters(port), time.perf_counter()
    asked = ask(sources, judge, context)["answered"]
    seconds = time.perf_counter() - begin
    tokens = int(np.sum(log_of(store, kinds.of(judge)).read(0).table["prompt_tokens"].to_numpy()))
    found = settled(port, before, tokens)
    computed = found["prompt_tokens"] - found["prefix_cache_hits"]
    same = fixed(judge, made) * asked
    print(
        f"{name:8}: {asked} prompts of {tokens / asked:.0f} tokens, {found['prompt_tokens']:,} counted of {tokens:,}, "
        f"{found['prefix_cache_hits']:,} found in the cache: {computed / found['prompt_tokens']:.1%} computed, "
        f"{computed / (tokens - same):.1%} of what follows the {same // asked} fixed; {seconds:.0f} s with the start",
        flush=True,
    )


def main() -> None:
    """Print the figures."""
    documents = int(sys.argv[1]) if len(sys.argv) > 1 else 96
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        ray.init(
            address="local", num_cpus=4, num_gpus=0, include_dashboard=False, object_store_memory=300_000_000,
            log_to_driver=False, logging_level=logging.ERROR, _metrics_export_port=port, _temp_dir=f"{folder}/ray",
        )  # fmt: skip
        model = write_tiny_llm(Path(folder) / "tiny")
        for name, kind in (("sorted", QuestionSources), ("shuffled", Shuffled)):
            measure(name, kind, model, Path(folder), documents, port)
        ray.shutdown()


if __name__ == "__main__":
    main()
