"""The kinds of judges: `kinds/<kind>.py` turns settings of that `kind` into a judge object.

Everything that depends on the kind is here. To add one, define its settings in `config/judge.py` and a module here,
named like its `kind`, whose `JUDGE` is its class.
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
    """Return the judge of settings. Imports the module of its kind; loads no model."""
    return import_module(f"{__name__}.{config.kind}").JUDGE(config)


def reading(panel: JudgeConfig) -> tuple[TextJudge, ...]:
    """Return the text judges of a panel, in order."""
    return tuple(judge for judge in map(of, panel.judges) if isinstance(judge, TextJudge))


def prompted(panel: JudgeConfig) -> tuple[PromptJudge, ...]:
    """Return the judges of a panel that are asked by prompts, in order."""
    return tuple(judge for judge in map(of, panel.judges) if isinstance(judge, PromptJudge))


def fingerprint_inputs(panel: JudgeConfig) -> dict[str, str]:
    """Return the inputs of a panel's fingerprint in addition to its settings, in a fixed order."""
    judges = sorted(map(of, panel.judges), key=lambda judge: not isinstance(judge, TextJudge))
    return {name: value for judge in judges for name, value in judge.fingerprint_inputs().items()}
