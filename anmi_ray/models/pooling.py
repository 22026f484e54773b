"""How a folder or repository says that its texts become vectors, and whether it has a scoring head, without torch."""

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
_READ = ("Transformer", "Pooling", "Normalize")  # what modules.json may list, by the last part of its class
_TOKENS_READ = ("Transformer", "MultiVectorMask", "Normalize")  # what it lists of token vectors without a projection
_SHOWN = 200  # characters of what a folder says that a message quotes
_OF_COLBERT = (
    "query_length",
    "document_length",
    "query_expansion",
)  # a transformer's settings for its two kinds of text


class _Module(BaseModel):
    """An entry of modules.json."""

    type: str
    path: str = Field(pattern=r"^[\w./-]{0,200}$")


class _Said(BaseModel):
    """Return the settings in the other files that affect what is read here."""

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


_MODULES, _SAID = TypeAdapter(list[_Module]), TypeAdapter(_Said)


@dataclass(frozen=True)
class TextPooling:
    """Settings of a sentence-transformers folder; the defaults are those of a plain transformer."""

    pooling: VectorPooling = "mean"
    max_tokens: int | None = None
    query_prompt: str = ""
    document_prompt: str = ""


def read_pooling(source: ModelSource) -> TextPooling:
    """How the model's folder or repository says that texts become vectors.

    Raises ConfigError where it names modules or a pooling that are not read here.
    """
    modules = _json(source, "modules.json")
    if modules is None:
        return TextPooling()
    kinds = {str(module["type"]).rpartition(".")[2]: str(module["path"]) for module in modules}
    if odd := [kind for kind in kinds if kind not in _READ] or ([] if "Pooling" in kinds else ["no pooling"]):
        raise _unread(source, f"its modules are {', '.join(kinds)}, and {odd[0]} is not read")
    return _pooled(source, kinds["Pooling"])


def _pooled(source: ModelSource, folder: str) -> TextPooling:
    """Return the settings of a model whose pooling is described in `folder`."""
    pooling = _json(source, f"{folder}/config.json") or {}
    mode = pooling.get("pooling_mode") or [
        name.removeprefix("pooling_mode_").replace("_tokens", "").replace("_token", "")
        for name, chosen in pooling.items()
        if name.startswith("pooling_mode_") and chosen is True
    ]
    modes = [mode] if isinstance(mode, str) else list(mode) or ["mean"]  # as sentence-transformers
    if len(modes) != 1 or modes[0] not in POOLINGS or pooling.get("include_prompt") is False:
        raise _unread(source, f"it pools by {', '.join(modes)}")
    settings = _json(source, "config_sentence_transformers.json") or {}
    prompts: Mapping[str, str] = settings.get("prompts") or {}
    document = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), "")
    limit = (_json(source, "sentence_bert_config.json") or {}).get("max_seq_length")
    return TextPooling(cast(VectorPooling, modes[0]), limit, prompts.get("query") or "", document or "")


def read_token_vectors(source: ModelSource) -> TextPooling | None:
    """How the model's folder or repository says that texts as a whole become vectors, beside those of all tokens.

    None where it is a ColBERT checkpoint with a projection, lengths, fillers or words left out, which has no vector of
    a text (models/colbert.py). Raises ConfigError as `read_pooling`.
    """
    if not is_colbert(source):
        return read_pooling(source)
    modules = _json(source, "modules.json") or ()
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    mask = next((_json(source, f"{one['path']}/config.json") for one in modules if one["type"].endswith("Mask")), None)
    transformer = _json(source, "sentence_bert_config.json") or {}
    of_mask = [(mask or {}).get(name) for name in ("skiplist_words", "keep_only_token_ids")]
    if kinds != list(_TOKENS_READ) or any(of_mask) or any(transformer.get(name) for name in _OF_COLBERT):
        return None
    return _pooled(source, "1_Pooling")


def activations(source: ModelSource) -> list[str]:
    """By its folder's or repository's word, the activation of each Dense; sentence-transformers has one as default."""
    modules = _json(source, "modules.json") or ()
    dense = (_json(source, f"{one['path']}/config.json") or {} for one in modules if one["type"].endswith(".Dense"))
    return [str(config.get("activation_function", "torch.nn.modules.activation.Tanh")) for config in dense]


def markers(source: ModelSource) -> list[str]:
    """Tokens that a ColBERT checkpoint of PyLate's or Stanford's puts before queries and documents.

    sentence-transformers' own has prompts in their place, which are text.
    """
    settings = _json(source, "config_sentence_transformers.json") or {}
    named = [settings.get(name) for name in ("query_prefix", "document_prefix")]
    if _json(source, "modules.json") is None:
        metadata = _json(source, "artifact.metadata") or {}
        named = [
            metadata.get(name) or usual
            for name, usual in (("query_token_id", "[unused0]"), ("doc_token_id", "[unused1]"))
        ]
    return [marker for marker in named if marker]


def is_bi_encoder(source: ModelSource) -> bool:
    """Whether the model's folder or repository is a sentence-transformers bi-encoder's."""
    modules = _json(source, "modules.json")
    settings = _json(source, "config_sentence_transformers.json") or {}
    if modules is None or settings.get("model_type", "SentenceTransformer") != "SentenceTransformer":
        return False
    return any(str(module["type"]).endswith(".Pooling") for module in modules)


def is_colbert(source: ModelSource) -> bool:
    """Whether the model's folder or repository is a ColBERT checkpoint: of PyLate, sentence-transformers or Stanford.

    PyLate's first versions wrote no kind of model, but the marker that stands before queries.
    """
    settings = _json(source, "config_sentence_transformers.json") or {}
    if "model_type" in settings or "query_prefix" in settings:
        return settings.get("model_type", "ColBERT") in ("ColBERT", "MultiVectorEncoder")
    return "HF_ColBERT" in ((_json(source, "config.json") or {}).get("architectures") or ())


def has_mean_head(source: ModelSource) -> bool:
    """Whether the model is a local folder, an exported cross-encoder that reads the mean token. Raises ConfigError."""
    settings = _json(source, f"{SCORE_FOLDER}/config.json") if source.is_local else None
    return (settings or {}).get("module_output_name") == "scores"


def draws_head(source: ModelSource, student: Student, pooling: Pooling) -> bool:
    """Whether training would draw the scoring head at random, as the model's configuration says; no weights are read.

    Vectors need no head, and yes-no reads the language model's own.
    """
    if student != "cross-encoder" or pooling == "yes-no":
        return False
    if pooling == "mean":
        return not has_mean_head(source)
    architectures = (_json(source, "config.json") or {}).get("architectures") or ("",)
    return not str(architectures[0]).endswith("ForSequenceClassification")


def _unread(source: ModelSource, what: str) -> ConfigError:
    return ConfigError(
        visible(what)[:_SHOWN],
        f"model {source.name}",
        f"give a bi-encoder of {', '.join(_READ)} that pools by {', '.join(POOLINGS)}, or train.student: cross-encoder",
    )


def _json(source: ModelSource, name: str) -> Any:
    """A JSON file of the model, or None where it has none. ConfigError where it does not say what its kind says."""
    path = Path(source.path_or_id) / name if source.is_local else _fetched(source, name)
    if path is None or not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        (_MODULES if name == "modules.json" else _SAID).validate_python(found, strict=True)
        return found
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        message = f"its {name} is not what its library writes: {field or 'all of it'}"
    except (ValueError, RecursionError) as error:
        message = f"its {name} is not JSON: {first_line(error)}"
    raise ConfigError(message, f"model {source.name}", "export the model anew, or download it again")


def _fetched(source: ModelSource, name: str) -> Path | None:
    """A file of a repository, from the cache where it is there; ConfigError where it can be neither had nor denied."""
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
