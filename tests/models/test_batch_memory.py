"""Where memory does not hold a batch, smaller ones give the same scores, and are taken at once from then on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.models.reranker import Reranker
from tests.models.tiny import WORDS, write_tiny_bert

LOADS: list[Callable[..., Reranker]] = [CrossEncoder.load, BiEncoder.load, LateInteraction.load]
GENERATOR = np.random.default_rng(0)
TEXTS = [" ".join(GENERATOR.choice(WORDS, size)) for size in GENERATOR.integers(3, 40, 60)]


class Small:
    """Holds so many tokens of a batch, in the place of a GPU's memory; counts how often it did not."""

    def __init__(self, network: torch.nn.Module, tokens: int) -> None:
        self.tokens = tokens
        self.full = 0
        network.register_forward_pre_hook(self._look, with_kwargs=True)

    def _look(self, network: torch.nn.Module, args: Any, inputs: dict[str, Any]) -> None:
        if inputs["input_ids"].numel() > self.tokens:
            self.full += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")


@pytest.mark.parametrize("load", LOADS)
def test_batches_become_as_small_as_memory_is(tmp_path: Path, load: Callable[..., Reranker]) -> None:
    folder = str(write_tiny_bert(tmp_path / "bert"))
    queries = ["word1 word2"] * len(TEXTS)
    whole = load(folder).score(queries, TEXTS)
    model = load(folder)
    memory = Small(model.network, 300)
    np.testing.assert_allclose(model.score(queries, TEXTS), whole, atol=1e-6)
    found = memory.full
    assert found >= 3
    model.score(queries, TEXTS)
    assert memory.full == found
    memory.tokens = 8  # one text takes more
    with pytest.raises(torch.OutOfMemoryError):
        model.score(queries, TEXTS)
