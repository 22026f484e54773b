"""On a GPU: every student scores and trains as on the CPU, with both engines, in either precision.

Run by `pytest -m gpu` on a machine that has one; skipped elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anmi_ray.config.learning import LoraConfig, Offload
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.models.kinds import load_reranker, load_student
from anmi_ray.models.reranker import Reranker
from anmi_ray.training.batching import pinned, step_batches
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.loop import Trained, train
from tests.models.test_token_vectors import write_pylate
from tests.models.tiny import write_tiny_bert, write_tiny_decoder
from tests.training.folder import FolderCheckpoints
from tests.training.lists import planted
from tests.training.test_loop import EXECUTION, InterruptedTrainingError, changed, dev_set, die_after

# DeepSpeed calls collectives that torch has renamed.
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:TensorFloat32"),
]

SMALL_RATE = {"learning_rate": 1e-3, "head_learning_rate": 3e-3}
ON_GPU = EXECUTION.model_copy(update={"use_gpu": True})
PROMPT = "Q: {query} D: {document} ?"
STUDENTS: dict[str, dict[str, Any]] = {
    "cls": {"pooling": "cls"},
    "mean": {"pooling": "mean"},
    "last": {"pooling": "last", "prompt": PROMPT},
    "yes-no": {"pooling": "yes-no", "prompt": PROMPT, "freeze_embeddings": True, "lora": LoraConfig(rank=4)},
    "bi-encoder": {"student": "bi-encoder"},
    "late-interaction": {"student": "late-interaction"},
    "colbert": {"student": "late-interaction"},
}


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model to start each student from."""
    folder = tmp_path_factory.mktemp("starts")
    bert = write_tiny_bert(folder / "bert")
    decoder = write_tiny_decoder(folder / "decoder", "qwen3")
    colbert = write_pylate(folder / "colbert", bert)
    return {name: decoder if name in ("last", "yes-no") else bert for name in STUDENTS} | {"colbert": colbert}


def config_of(name: str, starts: dict[str, Path], **more: Any) -> TrainConfig:
    """Settings of a short run of a student."""
    given = {key: value for key, value in changed(**SMALL_RATE).model_dump(exclude_unset=True).items()}
    if "student" in STUDENTS[name]:
        del given["head_learning_rate"]
    max_tokens = 64 if name in ("last", "yes-no") else 32
    return TrainConfig.model_validate(
        given | {"model": str(starts[name]), "max_tokens": max_tokens} | STUDENTS[name] | more
    )


def run(config: TrainConfig, device: str, execution: TrainExecution = ON_GPU, **options: Any) -> Trained:
    """Train on the planted lists, in a GPU's batches."""
    model = load_student(config, device)
    data = planted().lists(model.pairs)
    return train(model, data, dev_set(model)[0], config, execution, **options)


def losses(trained: Trained) -> list[float]:
    """The loss of every step."""
    return [float(row["loss"] or 0.0) for row in trained.rows if row["loss"] is not None]


def scored(model: Reranker) -> np.ndarray:
    """Scores of the documents of other lists."""
    dev, _ = dev_set(model)
    return model.score_tokens(dev.tokens)


@pytest.mark.parametrize("name", STUDENTS)
def test_a_student_scores_and_trains_as_on_the_cpu(starts: dict[str, Path], tmp_path: Path, name: str) -> None:
    config = config_of(name, starts)
    np.testing.assert_allclose(scored(load_student(config, "cuda")), scored(load_student(config)), atol=2e-4)
    there, here = run(config, "cuda"), run(config, "cpu", EXECUTION)
    assert there.model.device.type == "cuda"
    assert losses(there) == pytest.approx(losses(here), rel=2e-2, abs=1e-3)
    assert there.dev == pytest.approx(here.dev, abs=2e-2)
    folder = str(there.model.export(tmp_path / "model"))
    again = load_reranker(folder, device="cuda")
    np.testing.assert_allclose(scored(again), scored(there.model), atol=2e-4)
    np.testing.assert_allclose(scored(load_reranker(folder)), scored(there.model), atol=2e-4)


@pytest.mark.parametrize("name", STUDENTS)
def test_half_precision_learns_too(starts: dict[str, Path], name: str) -> None:
    trained = run(config_of(name, starts, precision="auto", max_steps=40), "cuda")
    first, last = (float(np.mean(part)) for part in (losses(trained)[:8], losses(trained)[-8:]))
    assert last < first
    exact = scored(trained.model)
    for dtype in ("bfloat16", "float16"):
        rounded = scored(trained.model.scorer(dtype))
        assert np.abs(rounded - exact).max() < 0.05 * max(1.0, float(np.abs(exact).max())), dtype


@pytest.mark.parametrize("name", ["mean", "late-interaction"])
@pytest.mark.parametrize(
    ("stage", "offload"), [(0, "none"), (1, "none"), (2, "none"), (3, "none"), (2, "optimizer"), (3, "parameters")]
)
def test_deepspeed_has_the_curve_of_plain_torch(
    starts: dict[str, Path], name: str, stage: int, offload: Offload
) -> None:
    plain = run(config_of(name, starts), "cuda")
    execution = ON_GPU.model_copy(update={"offload": offload})
    deep = run(config_of(name, starts, engine="deepspeed", zero_stage=stage), "cuda", execution)
    assert losses(deep) == pytest.approx(losses(plain), rel=2e-2, abs=1e-3)


@pytest.mark.parametrize(
    ("engine", "stage"), [("ddp", 0), ("deepspeed", 0), ("deepspeed", 1), ("deepspeed", 2), ("deepspeed", 3)]
)
def test_resumes_on_a_gpu(starts: dict[str, Path], tmp_path: Path, engine: str, stage: int) -> None:
    config = config_of("mean", starts, engine=engine, zero_stage=stage, dropout=0.1)
    execution = ON_GPU.model_copy(update={"checkpoint_minutes": 0.0})
    whole = run(config, "cuda")
    checkpoints = FolderCheckpoints(tmp_path / "checkpoints", kept=2)
    with pytest.raises(InterruptedTrainingError):
        run(config, "cuda", execution, checkpoints=checkpoints, on_row=die_after(8))
    resumed = run(config, "cuda", execution, checkpoints=checkpoints)
    assert losses(resumed) == pytest.approx(losses(whole), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("mean", {"compile": True}),  # the slowest by far: once
        *((name, {"gradient_checkpointing": True}) for name in ("mean", "last", "late-interaction")),
    ],
)
def test_how_it_computes_changes_no_step(starts: dict[str, Path], name: str, how: dict[str, Any]) -> None:
    plain = run(config_of(name, starts), "cuda")
    other = run(config_of(name, starts), "cuda", ON_GPU.model_copy(update=how))
    assert losses(other) == pytest.approx(losses(plain), rel=2e-2, abs=1e-3)


def test_batches_are_pinned(starts: dict[str, Path]) -> None:
    config = config_of("colbert", starts)
    model, problem = load_student(config), planted()
    data = problem.lists(model.pairs)
    (batch,) = step_batches(data, config, 0, Phase(1.0), EXECUTION)
    held = pinned(batch)
    arrays = [held.mask_BK, held.batches.query_L, held.batches.batches[0].ids, held.batches.batches[0].counted]
    assert [torch.from_numpy(array).is_pinned() for array in arrays] == [True] * 4
