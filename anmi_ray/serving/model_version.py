"""Which model scores: processes load it one after another, and start anew where they were lost."""

from __future__ import annotations

from dataclasses import dataclass

from anmi_ray.api import reranking
from anmi_ray.api.runs import Run
from anmi_ray.evaluation.relevance import RelevanceCurve
from anmi_ray.serving.settings import ServiceSettings


@dataclass(frozen=True)
class ModelVersion:
    """What answers call a model, where it lies, all links followed, and P(relevant) of its scores, where that is known.

    `fingerprint`: of a run's model. `asked_at`: when it was asked for, in seconds of the epoch; 0 of what a process
    starts with. Models of one such time are the same.
    """

    place: str = ""
    name: str = ""
    curve: RelevanceCurve | None = None
    fingerprint: str = ""
    asked_at: float = 0.0


def current(settings: ServiceSettings, asked_at: float = 0.0) -> ModelVersion:
    """The model that lies now where the settings say.

    Raises ConfigError where there is none, DamagedError where a run's is not what was written, DataError where a
    folder holds none or its relevance.json is damaged.
    """
    name, model = reranking.model_of(settings.model, settings.root)
    place = model if isinstance(model, str) else settings.model
    fingerprint = ""
    if reranking.names_run(settings.model):
        run = Run(settings.model, settings.root)
        calibrated = run.relevance()
        fingerprint = run.artifact("train", "model").fingerprint
    else:
        calibrated = reranking.calibration_of(place, settings.root)
    curve = None if calibrated is None else calibrated.curve
    return ModelVersion(place, settings.name or name, curve, fingerprint, asked_at)
