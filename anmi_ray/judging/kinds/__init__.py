"""The kinds of judges, one a file: `kinds/<kind>.py` makes of settings of that `kind` an object that knows the rest.

Settings say what a user wrote; everything that depends on which kind it is stands here and nowhere else. A new kind is
its settings in `config/judge.py` and a file here, named as its settings' `kind`, whose `JUDGE` is its class.
"""

from __future__ import annotations

from importlib import import_module
from typing import overload

from anmi_ray.config.judge import JudgeConfig, JudgeSettings, TextJudgeConfig
from anmi_ray.judging.kinds.base import Judge, PromptJudge, TextJudge

__all__ = ["Judge", "PromptJudge", "TextJudge", "fingerprint_inputs", "of", "prompted", "reading"]


@overload
def of(config: TextJudgeConfig) -> TextJudge: ...
@overload
def of(config: JudgeSettings) -> Judge: ...
def of(config: JudgeSettings) -> Judge:
    """The judge that settings describe. Loads the file of its kind, and no model."""
    return import_module(f"{__name__}.{config.kind}").JUDGE(config)


def reading(panel: JudgeConfig) -> tuple[TextJudge, ...]:
    """The judges of a panel that read texts, in its order."""
    return tuple(judge for judge in map(of, panel.judges) if isinstance(judge, TextJudge))


def prompted(panel: JudgeConfig) -> tuple[PromptJudge, ...]:
    """The judges of a panel that are asked by prompts, in its order."""
    return tuple(judge for judge in map(of, panel.judges) if isinstance(judge, PromptJudge))


def fingerprint_inputs(panel: JudgeConfig) -> dict[str, str]:
    """What, beside the settings, a stage that asks a panel follows from; in the order that fingerprints are made of."""
    judges = sorted(map(of, panel.judges), key=lambda judge: not isinstance(judge, TextJudge))
    return {name: value for judge in judges for name, value in judge.fingerprint_inputs().items()}
