"""Read from a folder or repository how texts become vectors, and whether it has a scoring head, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from anmi_ray.config.train import Pooling, Student
from anmi_ray.core.errors import ConfigError, first_line, visible
from anmi_ray.models.loading import ModelSource

VectorPooling = Literal["mean", "cls", "lasttoken"]
DENSE_FOLDER, SCORE_FOLDER = "2_Dense", "3_Dense"  # of an exported cross-encoder with a mean head
POOLINGS = ("mean", "cls", "lasttoken")
_MODULES = ("Transformer", "Pooling", "Normalize")  # supported entries of modules.json, last part of their class
_TOKEN_MODULES = ["Transformer", "MultiVectorMask", "Normalize"]  # of token vectors without a projection
_COLBERT_SETTINGS = ("query_length", "document_length", "query_expansion")


class _Module(BaseModel):
    """An entry of modules.json."""

    type: str
    path: str = Field(pattern=r"^[\w./-]{0,200}$")


class _Settings(BaseModel):
    """The settings in other files that are read here."""

    architectures: list[str] | None = None
    prompts: dict[str, str | None] | None = None
    pooling_mode: str | list[str] | None = None
    max_seq_length: int | None = None
    activation_function: str = ""
    module_output_name: str | None = None
    model_type: str = ""
    query_prefix: str | None = None
    document_prefix: str | None = None
    query_token_id: str | None = None
    doc_token_id: str | None = None


@dataclass(frozen=True)
class TextPooling:
    """Settings of a sentence-transformers folder; the defaults are those of a plain transformer."""

    pooling: VectorPooling = "mean"
    max_tokens: int | None = None
    query_prompt: str = ""
    document_prompt: str = ""


def read_pooling(source: ModelSource) -> TextPooling:
    """Return how a model pools texts into vectors. Raises ConfigError on unsupported modules or pooling."""
    modules = _modules(source)
    if not modules:
        return TextPooling()
    unsupported = [kind for kind, _ in modules if kind not in _MODULES]
    folder = dict(modules).get("Pooling")
    if unsupported or folder is None:
        names = ", ".join(kind for kind, _ in modules)
        raise _unsupported(source, f"its modules are {names}, and {(*unsupported, 'no pooling')[0]} is not supported")
    return _pooled(source, folder)


def _pooled(source: ModelSource, folder: str) -> TextPooling:
    pooling = _settings(source, f"{folder}/config.json")
    mode = pooling.get("pooling_mode") or [
        name.removeprefix("pooling_mode_").replace("_tokens", "").replace("_token", "")
        for name, chosen in pooling.items()
        if name.startswith("pooling_mode_") and chosen is True
    ]
    modes = [mode] if isinstance(mode, str) else list(mode) or ["mean"]  # as sentence-transformers
    if len(modes) != 1 or modes[0] not in POOLINGS or pooling.get("include_prompt") is False:
        raise _unsupported(source, f"it pools by {', '.join(modes)}")
    prompts: Mapping[str, str] = _settings(source, "config_sentence_transformers.json").get("prompts") or {}
    document = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), "")
    limit = _settings(source, "sentence_bert_config.json").get("max_seq_length")
    return TextPooling(cast(VectorPooling, modes[0]), limit, prompts.get("query") or "", document or "")


def read_token_vectors(source: ModelSource) -> TextPooling | None:
    """Return how a model of token vectors also pools texts; None for a ColBERT checkpoint with its own settings.

    Raises ConfigError as `read_pooling`.
    """
    if not is_colbert(source):
        return read_pooling(source)
    modules = _modules(source)
    mask = (
        _settings(source, f"{dict(modules)['MultiVectorMask']}/config.json")
        if "MultiVectorMask" in dict(modules)
        else {}
    )
    transformer = _settings(source, "sentence_bert_config.json")
    own = [mask.get(name) for name in ("skiplist_words", "keep_only_token_ids")]
    own += [transformer.get(name) for name in _COLBERT_SETTINGS]
    if [kind for kind, _ in modules] != _TOKEN_MODULES or any(own):
        return None
    return _pooled(source, "1_Pooling")


def activations(source: ModelSource) -> list[str]:
    """Activation of each Dense module; the default is sentence-transformers'."""
    dense = (_settings(source, f"{path}/config.json") for kind, path in _modules(source) if kind == "Dense")
    return [str(settings.get("activation_function", "torch.nn.modules.activation.Tanh")) for settings in dense]


def markers(source: ModelSource) -> list[str]:
    """Marker tokens of a PyLate or Stanford ColBERT checkpoint; sentence-transformers' own have text prompts."""
    if _modules(source):
        settings = _settings(source, "config_sentence_transformers.json")
        return [marker for name in ("query_prefix", "document_prefix") if (marker := settings.get(name))]
    metadata = _settings(source, "artifact.metadata")
    usual = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]"}
    return [metadata.get(name) or marker for name, marker in usual.items()]


def is_bi_encoder(source: ModelSource) -> bool:
    """Return whether the model is a sentence-transformers bi-encoder."""
    settings = _settings(source, "config_sentence_transformers.json")
    pooled = any(kind == "Pooling" for kind, _ in _modules(source))
    return pooled and settings.get("model_type", "SentenceTransformer") == "SentenceTransformer"


def is_colbert(source: ModelSource) -> bool:
    """Return whether the model is a ColBERT checkpoint of PyLate, sentence-transformers or Stanford."""
    settings = _settings(source, "config_sentence_transformers.json")
    if "model_type" in settings or "query_prefix" in settings:  # the latter alone: PyLate's first versions
        return settings.get("model_type", "ColBERT") in ("ColBERT", "MultiVectorEncoder")
    return "HF_ColBERT" in (_settings(source, "config.json").get("architectures") or ())


def has_mean_head(source: ModelSource) -> bool:
    """Return whether the model is an exported folder of a cross-encoder with a mean head."""
    return source.is_local and _settings(source, f"{SCORE_FOLDER}/config.json").get("module_output_name") == "scores"


def draws_head(source: ModelSource, student: Student, pooling: Pooling) -> bool:
    """Return whether training would draw a scoring head at random, by the model's configuration."""
    if student != "cross-encoder" or pooling == "yes-no":
        return False
    if pooling == "mean":
        return not has_mean_head(source)
    architectures = _settings(source, "config.json").get("architectures") or ("",)
    return not str(architectures[0]).endswith("ForSequenceClassification")


def _unsupported(source: ModelSource, what: str) -> ConfigError:
    modules, poolings = ", ".join(_MODULES), ", ".join(POOLINGS)
    remedy = f"give a bi-encoder of {modules} that pools by {poolings}, or train.student: cross-encoder"
    return ConfigError(visible(what)[:200], f"model {source.name}", remedy)


def _modules(source: ModelSource) -> list[tuple[str, str]]:
    """Kind and folder of each module; empty without modules.json."""
    modules = _json(source, "modules.json") or ()
    return [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in modules]


def _settings(source: ModelSource, name: str) -> dict[str, Any]:
    return _json(source, name) or {}


def _json(source: ModelSource, name: str) -> Any:
    """Read a JSON file of the model, None if it is missing. Raises ConfigError if it is malformed."""
    path = Path(source.path_or_id) / name if source.is_local else _fetched(source, name)
    if path is None or not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        kind = list[_Module] if name == "modules.json" else _Settings
        TypeAdapter[Any](kind).validate_python(found, strict=True)
        return found
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        message = f"its {name} is malformed: {field or 'all of it'}"
    except (ValueError, RecursionError) as error:
        message = f"its {name} is not JSON: {first_line(error)}"
    raise ConfigError(message, f"model {source.name}", "export the model anew, or download it again")


def _fetched(source: ModelSource, name: str) -> Path | None:
    """Path of a repository's file, None if it has none. Raises ConfigError if cache and hub cannot tell."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    where = {"repo_id": source.path_or_id, "filename": name, "revision": source.hub_revision}
    cached = try_to_load_from_cache(**where)  # a path, a marker of absence, or None
    if cached is not None:
        return Path(cached) if isinstance(cached, str) else None
    try:
        return Path(hf_hub_download(**where))
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            f"{name} is not in the local cache, and the hub cannot be reached",
            f"model {source.name}",
            "check the network, or give a local folder",
        ) from error
    except EntryNotFoundError:
        return None
