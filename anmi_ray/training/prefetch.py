"""The next step's batches, put together by a thread while the step under way computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import fields, replace
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from anmi_ray.models.texts import TextPairs
from anmi_ray.training.curriculum import Phase

M = TypeVar("M")
D = TypeVar("D", bound=Any)


class Ahead(Generic[M]):
    """Gives what `make(step, phase)` makes, made before it is asked for where that was foreseen.

    What was foreseen of another step or phase is dropped and made anew, so the result depends on nothing but step and
    phase. `make` runs once at a time; what it raises is raised where its result is asked for. The thread ends with the
    `with` block.
    """

    def __init__(self, make: Callable[[int, Phase], list[M]]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, "batches")
        self._foreseen: tuple[int, Phase, Future[list[M]]] | None = None

    def foresee(self, step: int, phase: Phase | None) -> None:
        """Begin with the batches of `step`, if they will be of `phase`; None: nobody can say."""
        self._foreseen = None if phase is None else (step, phase, self._thread.submit(self._make, step, phase))

    def batches(self, step: int, phase: Phase) -> list[M]:
        """The batches of `step` in `phase`."""
        foreseen = self._foreseen
        self._foreseen = None
        if foreseen is not None:
            if foreseen[:2] == (step, phase):
                return foreseen[2].result()
            wait([foreseen[2]])
        return self._make(step, phase)

    def __enter__(self) -> Ahead[M]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=True)


def pinned(batch: Any) -> Any:
    """The same in page-locked memory, from which a GPU copies by itself while the processor goes on."""
    inputs: Any = [_arrays_pinned(part) for part in batch.batches]
    if isinstance(batch.batches, TextPairs):
        inputs = replace(_arrays_pinned(batch.batches), batches=inputs)
    return replace(_arrays_pinned(batch), batches=inputs)


def _arrays_pinned(part: D) -> D:
    """With every array among its fields in page-locked memory."""
    held = {field.name: getattr(part, field.name) for field in fields(part)}
    return replace(part, **{name: _pin(value) for name, value in held.items() if isinstance(value, np.ndarray)})


def _pin(array: NDArray[Any]) -> NDArray[Any]:
    return torch.from_numpy(array).pin_memory().numpy()
