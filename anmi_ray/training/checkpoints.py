"""Where the state of a training run goes while it is under way, as an interface, and resuming from there.

A broken checkpoint is recognised before anything of it is loaded, and the one before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from anmi_ray.core.errors import ConfigError
from anmi_ray.training.engine import Engine
from anmi_ray.training.manifest import Origin, check


class Checkpoints(Protocol):
    """All workers call `open`, `save` and `wanted` at the same steps, with the same arguments."""

    def names(self) -> list[str]:
        """The checkpoints on storage, those of the highest steps first; one worker is asked, the others are told."""
        ...

    def open(self, name: str) -> Path:
        """A local folder with all files of a checkpoint."""
        ...

    def save(self, write: Callable[[Path], None], step: int, dev: float | None) -> None:
        """Let every worker's `write` fill a folder; their union is kept as the checkpoint after `step` steps."""
        ...

    def wanted(self) -> bool:
        """Whether a checkpoint should be saved at once, because workers will soon be stopped."""
        ...


def newest_whole(
    checkpoints: Checkpoints, now: Origin, engine: Engine, notice: Callable[[str], None]
) -> tuple[Path, Origin] | None:
    """The newest checkpoint that is whole, the same for all workers, who share the reading; None where there is none.

    `now` is what is about to resume (its step does not matter). `notice` is told, on the first worker, of every broken
    checkpoint and of what follows. Raises ConfigError where the checkpoint cannot be continued by `now`.
    """
    [names, *_] = engine.gather(checkpoints.names() if engine.rank == 0 else [])
    broken = 0
    for name in names:
        folder = checkpoints.open(name)
        checked = engine.gather(check(folder, engine.rank, engine.world))
        wrong = [problem for problem in checked if isinstance(problem, str)]
        if not wrong:
            _continuable(checked[0], now, name)
            if broken and engine.rank == 0:
                notice(f"training resumes from the checkpoint before, after step {checked[0].step:,}")
            return folder, checked[0]
        broken += 1
        if engine.rank == 0:
            notice(f"checkpoint {name} is broken and left out: {wrong[0]}")
    if broken and engine.rank == 0:
        notice("no whole checkpoint is left: training starts anew")
    return None


def _continuable(written: Origin, now: Origin, name: str) -> None:
    """ZeRO cuts the optimiser's state into as many parts as there are workers; every other state is whole."""
    place = f"checkpoint {name}"
    if (written.engine, written.zero_stage) != (now.engine, now.zero_stage):
        raise ConfigError(
            f"was written with train.engine: {written.engine} and train.zero_stage: {written.zero_stage}",
            place,
            f"resume with these (engine: auto does so with {written.world} workers), or remove the checkpoints to "
            "train anew",
        )
    if written.world != now.world and written.engine == "deepspeed" and written.zero_stage > 0:
        raise ConfigError(
            f"holds the optimiser's state in {written.world} parts (ZeRO stage {written.zero_stage}), which as many "
            f"workers can continue; execution.train.num_workers is {now.world}",
            place,
            f"set execution.train.num_workers: {written.world} to resume; train.engine: ddp trains anew, and resumes "
            "with any number of workers",
        )
