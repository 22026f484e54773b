"""Where a trained model is computed and in which arithmetic: on a GPU as on the CPU, in 16 bits nearly so, mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anmi_ray
from anmi_ray.api.reranking import _loaded  # pyright: ignore[reportPrivateUsage]
from anmi_ray.core.errors import ConfigError
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.models.reranker import Reranker
from tests.commands import printed, refused
from tests.models.tiny import WORDS, write_tiny_classifier

KINDS: dict[str, Callable[..., Reranker]] = {
    "cross-encoder": CrossEncoder.load,
    "bi-encoder": BiEncoder.load,
    "late-interaction": LateInteraction.load,
}
QUERY = "word1 word2 word3"
TEXTS = [" ".join(words) for words in np.random.default_rng(0).choice(WORDS, (40, 12))]
without_a_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model of each kind; read only."""
    folder = tmp_path_factory.mktemp("models")
    bert = str(write_tiny_classifier(folder / "bert", ["relevant"]))  # a head whose scores differ
    return {kind: load(bert).export(folder / kind) for kind, load in KINDS.items()}


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """The flags of `anmi rerank` that name a collection and a run over it."""
    folder = tmp_path_factory.mktemp("collection")
    documents = [{"_id": f"d{at}", "title": "", "text": text} for at, text in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": QUERY}))
    lines = [f"q Q0 d{at} {at + 1} {-at} any\n" for at in range(len(TEXTS))]
    (folder / "run.trec").write_text("".join(lines))
    return "--collection", folder, "--ranking", folder / "run.trec", "--out", "-", "--depth", len(TEXTS)


def scores(model: Path, **how: Any) -> dict[int, float]:
    table = anmi_ray.rerank(model, QUERY, TEXTS, threads=1, **how)
    return dict(zip(table["index"].to_pylist(), table["score"].to_pylist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_sixteen_bits_score_nearly_alike_by_command_and_in_python(
    kind: str, models: dict[str, Path], ranking: tuple[object, ...]
) -> None:
    """In turn, so that what is kept in memory must be that of the precision."""
    usual = scores(models[kind])
    for precision in ("bfloat16", "float16"):
        found = scores(models[kind], precision=precision, device="cpu")
        assert found != usual
        assert found == pytest.approx(usual, abs=2e-2)
        assert scores(models[kind], device="cpu") == pytest.approx(usual, abs=1e-4)
        how = ("--precision", precision, "--device", "cpu")
        lines = printed("rerank", "--model", models[kind], *ranking, *how).splitlines()
        fields = [line.split() for line in lines if line.startswith("q ")]
        assert {int(row[2][1:]): float(row[4]) for row in fields} == pytest.approx(found, abs=1e-3)


@without_a_gpu
def test_a_gpu_that_is_not_there_is_one_message(models: dict[str, Path], ranking: tuple[object, ...]) -> None:
    with pytest.raises(ConfigError, match="a GPU to compute on: "):
        anmi_ray.rerank(models["bi-encoder"], QUERY, TEXTS, device="cuda")
    assert "a GPU to compute on: " in refused("rerank", "--model", models["bi-encoder"], *ranking, "--device", "cuda")


def test_a_gpu_that_is_full_is_one_message(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nMore of it")

    monkeypatch.setattr(BiEncoder, "score", full)
    with pytest.raises(ConfigError, match=r"the GPU: out of memory.*CUDA out of memory\. .*\n.*use the CPU"):
        anmi_ray.rerank(models["bi-encoder"], QUERY, TEXTS)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_scores_as_the_cpu_does(kind: str, models: dict[str, Path]) -> None:
    """In turn, so that what is kept in memory must be that of the device."""
    on_cpu = scores(models[kind], device="cpu")
    assert scores(models[kind]) == pytest.approx(on_cpu, abs=1e-4)
    assert _loaded(models[kind], 1, "cuda", "float32").device.type == "cuda"
    assert scores(models[kind], device="cuda", precision="bfloat16") == pytest.approx(on_cpu, abs=5e-2)
    assert scores(models[kind], device="cpu") == on_cpu
    assert _loaded(models[kind], 1, "cpu", "float32").device.type == "cpu"
