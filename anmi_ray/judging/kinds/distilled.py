"""The judge that a run's own distillation produces, and `judge.json`, which describes how its model is asked and read.

That file is stored next to the weights. The model is a Hugging Face sequence classification folder with the labels of
the target, in order. Logits refer to the *second* document where they are about one: the score C is 0 if the first
document wins, 1 if the second does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import pydantic
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from anmi_ray.config.distill import LABELS, DistillConfig, Target
from anmi_ray.config.encoder_judge import TEXT, TEXT_PAIR, EncoderJudgeConfig, check_texts
from anmi_ray.config.judge import DistilledJudgeConfig
from anmi_ray.config.needs import Need
from anmi_ray.core.errors import ConfigError
from anmi_ray.judging.kinds.base import Judge, ModelInputs, actor_need

FILE = "judge.json"
_REMEDY = "distill again, or judge with the release that wrote it"


@dataclass(frozen=True)
class DistilledJudge(Judge):
    """An encoder judge whose model is produced by the run; `resolved` returns the judge that is asked."""

    config: DistilledJudgeConfig

    def need(self, place: str, on: Mapping[str, str]) -> Need:
        return actor_need(place, on, self.config.gpus)

    def model_inputs(self, distill: DistillConfig | None) -> ModelInputs | None:
        return None if distill is None else ModelInputs(distill.form, distill.max_tokens)

    def resolved(self, made: Mapping[str, Any]) -> EncoderJudgeConfig:
        return EncoderJudgeConfig.model_validate(dict(made) | self.config.model_dump(exclude={"kind"}))


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class DistilledForm:
    """The inputs of a distilled model, and the meaning of its logits.

    text, text_pair: its texts, composed of {query}, {first}, {second} and {sep} (see EncoderJudgeConfig), truncated
    together to `max_tokens`.
    calibration: always None; a fitted temperature is part of the last layer's weights.
    """

    format: Literal[1] = field(default=1, kw_only=True)
    target: Target
    text: str = TEXT
    text_pair: str | None = TEXT_PAIR
    max_tokens: int = Field(default=192, ge=16)
    calibration: None = None

    @model_validator(mode="after")
    def _texts(self) -> Self:
        check_texts(self.text, self.text_pair)
        return self

    @property
    def labels(self) -> tuple[str, ...]:
        """The model's labels, in order."""
        return LABELS[self.target]

    def to_json(self) -> str:
        """Return the content of the file."""
        return json.dumps(_FORM.dump_python(self, mode="json"), indent=2, ensure_ascii=False) + "\n"


_FORM = TypeAdapter(DistilledForm)


def read(folder: str | Path) -> DistilledForm | None:
    """Read the form of the model in a local folder; None without the file.

    Raises ConfigError with the file's name if it is damaged, of another format, or contradicts the model's labels.
    """
    path = Path(folder) / FILE
    try:
        form = _FORM.validate_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        mistakes = (f"{'.'.join(map(str, one['loc']))} {one['msg']}".strip() for one in error.errors(include_url=False))
        raise ConfigError("; ".join(mistakes), str(path), _REMEDY) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", str(path), _REMEDY) from None
    _check_labels(form, path)
    return form


def _check_labels(form: DistilledForm, path: Path) -> None:
    """Raise ConfigError if the labels in config.json differ or are missing."""
    try:
        named = json.loads((path.parent / "config.json").read_text(encoding="utf-8")).get("id2label") or {}
        labels = [named[i] for i in sorted(named, key=int)]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"config.json cannot be read: {error}", str(path), _REMEDY) from None
    if labels != list(form.labels):
        shown = ", ".join(map(str, labels)) or "none"
        wanted = f"a {form.target} model has {', '.join(form.labels)}"
        raise ConfigError(f"config.json lists the labels {shown}, and {wanted}", str(path), _REMEDY)


JUDGE = DistilledJudge
