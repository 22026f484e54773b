"""Learning curves of several workers: rank 0 opens the trackers, all of them learn whether it could.

They stand under `tracking/` of the root, beside the artifacts: no artifact tells how it was watched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from ray.train.torch import get_device

from anmi_ray.core.errors import ConfigError
from anmi_ray.store import Artifact, documents, public_root
from anmi_ray.store.folders import publish_folder
from anmi_ray.training.tracking import Curves, open_curves

NOTE = "curves.json"  # by tracker, where its curves are


def curves_folder(artifact: Artifact) -> str:
    """Where in the store the files of an artifact's curves stand."""
    return f"tracking/{artifact.fingerprint}"


def shared_curves(
    trackers: Sequence[str], name: str, place: str, settings: Mapping[str, Any], stack: ExitStack
) -> tuple[Curves, Callable[[], None]]:
    """The trackers of the training `name`, open until the stack is left, and what makes their rows outlive a kill.

    `place` is the folder or URI for their files; at a URI these appear at every such call and at the end. On other
    ranks than 0 there are no trackers. Raises ConfigError on all ranks where one cannot be opened: none must wait for
    another.
    """
    curves, failed = Curves({}), [None]
    writes, away = bool(trackers) and dist.get_rank() == 0, "://" in place
    local = stack.enter_context(_scratch(place)) if writes and away else Path(place)
    if writes:
        try:
            curves = open_curves(trackers, name, local, settings, public_root(place))
        except ConfigError as error:
            failed = [error.args]
    if trackers:
        dist.broadcast_object_list(failed, src=0, device=get_device())
    if failed[0] is not None:
        raise ConfigError(*failed[0])

    if writes:
        stack.callback(_note, local, curves)  # when they are closed

    def flush() -> None:
        curves.flush()
        if writes and away:
            publish_folder(local, place)

    return stack.enter_context(curves), flush


def _note(folder: Path, curves: Curves) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NOTE).write_text(documents.to_text(curves.where), encoding="utf-8")


@contextmanager
def _scratch(place: str) -> Iterator[Path]:
    """A folder of this machine; what is in it at the end goes to the URI `place`."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield Path(folder)
        finally:
            publish_folder(Path(folder), place)
