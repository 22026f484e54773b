"""The judge that the run's own distillation makes, and `judge.json`, which says how its model is asked and read.

That file is kept beside the weights. The model is a Hugging Face sequence classification folder whose labels are the
target's, in this order. Its logits are of the *second* document where they are of one: the score C is 0 where the first
document wins, 1 where the second does.
Letters: N questions, L labels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
from scipy.special import expit, log_softmax

from anmi_ray.config.distill import LABELS, DistillConfig, Target
from anmi_ray.config.encoder_judge import EncoderJudgeConfig, check_texts
from anmi_ray.config.judge import DistilledJudgeConfig
from anmi_ray.config.needs import Need
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.judging.calibration import Isotonic, from_json
from anmi_ray.judging.kinds.base import Judge, ModelInputs, Reals, actor_need

FILE = "judge.json"
FORMAT = 1
_LEAST_TOKENS = 16
_TINY = np.finfo(np.float64).tiny  # for the logarithm of a probability of 0
_REMEDY = "distill again"


@dataclass(frozen=True)
class DistilledJudge(Judge):
    """An encoder judge whose model the run makes; who asks it asks what `resolved` gives."""

    config: DistilledJudgeConfig

    def need(self, place: str, on: Mapping[str, str]) -> Need:
        """See Judge."""
        return actor_need(place, on, self.config.gpus)

    def model_inputs(self, distill: DistillConfig | None) -> ModelInputs | None:
        """See Judge."""
        return None if distill is None else ModelInputs(distill.form, distill.max_tokens)

    def resolved(self, made: Mapping[str, Any]) -> EncoderJudgeConfig:
        """See Judge."""
        return EncoderJudgeConfig.model_validate(dict(made) | self.config.model_dump(exclude={"kind"}))


@dataclass(frozen=True)
class DistilledForm:
    """What a distilled model reads and what its logits are.

    text, text_pair: its texts, made of {query}, {first}, {second} and {sep} (see EncoderJudgeConfig), cut together to
    `max_tokens`; calibration: of E[C], held out, or None. A fitted temperature is in the weights of the last layer.
    """

    target: Target
    text: str = "{query}"
    text_pair: str | None = "{first} {sep} {second}"
    max_tokens: int = 192
    calibration: Isotonic | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The model's labels, in order."""
        return LABELS[self.target]

    def to_json(self) -> dict[str, Any]:
        """What stands in the file."""
        return {"format": FORMAT, **vars(self), "calibration": self.calibration and self.calibration.to_json()}


def write(form: DistilledForm, folder: str | Path) -> Path:
    """Write the file of a model's folder. Raises ConfigError for a form that `read` would refuse."""
    path = Path(folder) / FILE
    content = form.to_json()
    _form(content, str(path))
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def read(folder: str | Path) -> DistilledForm | None:
    """The form of the model in a local folder; None where it has none.

    Raises ConfigError, naming the file, where it is none of ours, damaged, or of another format.
    """
    path = Path(folder) / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", str(path), _REMEDY) from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is no JSON: {error}", str(path), _REMEDY) from None
    form = _form(content, str(path))
    _check_labels(form, path)
    return form


def log_probabilities(form: DistilledForm, logits: Reals) -> dict[str, Reals]:
    """log_first, log_second and, but for binary models, log_tie, float64[N] each, of logits float64[N, L].

    With m = E[C] and d = E|2C − 1|, m calibrated and d at least |2m − 1|: first (d − (2m − 1))/2, second
    (d + (2m − 1))/2, tie 1 − d. Probabilities of 0 are 2e-308; NaN stays NaN.
    """
    if form.target == "two-head":
        first = expit(-logits[:, 0])
        second = expit(logits[:, 0])
        tie = expit(-logits[:, 1])
    else:
        logs = log_softmax(logits, axis=1)
        if form.calibration is None:
            return {f"log_{label}": logs[:, column] for column, label in enumerate(form.labels)}
        share = np.exp(logs)
        tie = share[:, 2] if form.target == "ternary" else np.zeros(len(share))
        first = share[:, 0] + tie / 2
        second = share[:, 1] + tie / 2
    if form.calibration is not None:
        lead = (second - first) / 2  # the curve may jump at ½: both sides must be read from one number
        better = form.calibration(0.5 + np.abs(lead))
        first = np.where(lead < 0, better, 1 - better)
        second = np.where(lead < 0, 1 - better, better)
    tie = np.minimum(tie, 2 * np.minimum(first, second))  # 1 − d: no distribution has d < |2m − 1|
    found = {"log_first": first - tie / 2, "log_second": second - tie / 2, "log_tie": tie}
    return {name: np.log(np.maximum(found[name], _TINY)) for name in list(found)[: 2 + (form.target != "binary")]}


def _form(content: object, place: str) -> DistilledForm:
    if not isinstance(content, dict):
        raise ConfigError("is no JSON object", place, _REMEDY)
    values = cast(dict[str, Any], content)
    if values.get("format") != FORMAT:
        remedy = f"{_REMEDY}, or judge with the release that wrote it"
        raise ConfigError(f"has format {values.get('format')!r}, and this release reads {FORMAT}", place, remedy)
    wanted = ("format", *(field.name for field in fields(DistilledForm)))
    if missing := [name for name in wanted if name not in values]:
        raise ConfigError(f"lacks {', '.join(missing)}", place, _REMEDY)
    if unknown := sorted(values.keys() - set(wanted)):
        raise ConfigError(f"holds {', '.join(unknown)}, which format {FORMAT} does not have", place, _REMEDY)
    target, text, pair, tokens = (values[name] for name in wanted[1:5])
    if target not in get_args(Target):
        allowed = ", ".join(get_args(Target))
        raise ConfigError(f"has target {target!r}, which is none of {allowed}", place, _REMEDY)
    if not isinstance(text, str) or not isinstance(pair, str | None):
        raise ConfigError("text must be text, and text_pair text or null", place, _REMEDY)
    if type(tokens) is not int or tokens < _LEAST_TOKENS:
        least = f"a whole number of at least {_LEAST_TOKENS}"
        raise ConfigError(f"has max_tokens {tokens!r}, which must be {least}", place, _REMEDY)
    try:
        check_texts(text, pair)
    except ValueError as error:
        raise ConfigError(str(error), place, _REMEDY) from None
    return DistilledForm(target, text, pair, tokens, _calibration(values["calibration"], place))


def _check_labels(form: DistilledForm, path: Path) -> None:
    """Raise ConfigError where the config.json beside the file names other labels, or none."""
    try:
        named = json.loads((path.parent / "config.json").read_text(encoding="utf-8")).get("id2label") or {}
        labels = [named[i] for i in sorted(named, key=int)]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"the config.json beside it cannot be read: {error}", str(path), _REMEDY) from None
    if labels != list(form.labels):
        shown = ", ".join(map(str, labels)) or "none"
        wanted = f"a {form.target} model has {', '.join(form.labels)}"
        raise ConfigError(f"the config.json beside it lists the labels {shown}, and {wanted}", str(path), _REMEDY)


def _calibration(content: object, place: str) -> Isotonic | None:
    if content is None:
        return None
    why = "a temperature belongs into the last layer's weights"
    found = None
    if isinstance(content, dict) and cast(dict[str, Any], content).get("kind") != "temperature":
        try:
            found = from_json(cast(dict[str, Any], content))
        except DataError as error:
            why = error.message
    if found is None:
        raise ConfigError(f"its calibration is no isotonic curve: {why}", place, _REMEDY)
    if not all(0.5 <= value <= 1.0 for value in (*found.x, *found.y)):
        raise ConfigError("its calibration has knots that are not in [0.5, 1]", place, _REMEDY)
    return found


JUDGE = DistilledJudge
