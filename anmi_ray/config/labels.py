"""Label selectors: which nodes of a cluster may carry out a piece of work, in Ray's own words (Kubernetes' too)."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from anmi_ray.config.base import ExecutionSettings

_NAME = r"[a-zA-Z0-9](?:[a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?"
_KEY = re.compile(rf"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]{{0,251}}[a-zA-Z0-9])?/)?{_NAME}")
_VALUE = re.compile(rf"!?(?:{_NAME}|in\({_NAME}(?:, ?{_NAME})*\))")


def _well_formed(selector: dict[str, str]) -> dict[str, str]:
    for key, value in selector.items():
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is not the name of a label, such as ray-subcluster or ray.io/accelerator-type")
        if not _VALUE.fullmatch(value):
            raise ValueError(
                f"{value!r} selects no label: write a value (annotate), several (in(a, b)), or what it must not be "
                "(!train, !in(a, b))"
            )
    return selector


LabelSelector = Annotated[dict[str, str], AfterValidator(_well_formed)]


class Placed(ExecutionSettings):
    """Base of what may be bound to some nodes."""

    label_selector: LabelSelector = Field(
        default={}, description="labels that nodes must have, such as {ray-subcluster: train}; none: any node"
    )


def said(selector: dict[str, str]) -> str:
    """A selector in words.

    >>> said({"ray-subcluster": "annotate", "ray.io/market-type": "!spot"})
    'ray-subcluster=annotate, ray.io/market-type=!spot'
    """
    return ", ".join(f"{key}={value}" for key, value in selector.items())
