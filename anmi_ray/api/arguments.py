"""Check arguments of API functions, to raise one clear message instead of a library's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.errors import ConfigError, DataError, first_line


def text(value: object, place: str) -> str:
    """Return a string. Raises ConfigError for other types, DataError for characters that files cannot hold."""
    if not isinstance(value, str):
        raise ConfigError(f"{type(value).__name__} is no text", place, "give a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError("holds half of a surrogate pair, which is no character", place, "decode it anew") from None
    return value


def texts(values: object, place: str) -> list[str]:
    """Texts, of a list or of whatever gives one after another. Raises as `text`, and for a text alone."""
    if isinstance(values, str | bytes):
        raise ConfigError("is one text, and each of its characters would be read as one", place, f"write [{place}]")
    if not isinstance(values, Iterable):
        raise ConfigError(f"{type(values).__name__} is no list of texts", place, "give a list of str")
    return [text(value, f"{place}[{at}]") for at, value in enumerate(values)]


def scores(values: object, place: str) -> dict[str, NDArray[np.float64]]:
    """Return scores by system. Raises ConfigError unless it is a mapping to lists of numbers."""
    if not isinstance(values, Mapping):
        remedy = 'give a list of numbers for each system, such as {"bm25": [2.5, 1.0]}'
        raise ConfigError(f"{type(values).__name__} is no mapping from systems to their scores", place, remedy)
    return {text(name, f"a system of {place}"): _numbers(of, f"{place}[{name!r}]") for name, of in values.items()}


def _numbers(values: Any, place: str) -> NDArray[np.float64]:
    """An array of numbers. Raises ConfigError where none can be made."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # the last is torch's, of a gradient
        what = f"no list of numbers can be made of it: {first_line(error)}"
        raise ConfigError(what, place, "give one finite number for each text") from None


def share(value: object, place: str, what: str = "share") -> None:
    """Raise ConfigError unless `value` is a number from 0 to 1."""
    if not isinstance(value, int | float | np.number) or not 0.0 <= value <= 1.0:
        raise ConfigError(f"{value!r} is no {what}", place, "give a number from 0 to 1")


def threads(value: object) -> None:
    """Raise ConfigError unless `value` is a number of threads."""
    if not isinstance(value, int | np.integer) or value < 0:
        raise ConfigError(f"{value!r} is no number of threads", "threads", "give 0, all cores, or a number above")


def one_of(value: object, known: object, place: str) -> None:
    """Raise ConfigError unless `value` is one of the Literal `known`."""
    if value not in get_args(known):
        raise ConfigError(f"{value!r} is unknown", place, f"give one of {', '.join(get_args(known))}")
