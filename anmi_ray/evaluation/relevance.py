"""What a reranker's score is worth: P(relevant) by a curve fitted on dev queries, kept in a file beside the model.

The file relevance.json of an exported folder holds the curve, what it was fitted to, and how it did on queries that it
was not fitted to. The curve never falls, so it changes no order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import TypeAdapter, ValidationError
from scipy import special

from anmi_ray.core.arrays import Reals
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.evaluation.pairwise_measures import Calibration
from anmi_ray.evaluation.significance import Estimate

FILE = "relevance.json"
Truth = Literal["labels", "judges"]


@dataclass(frozen=True)
class RelevanceCurve:
    """P(relevant) of a score.

    logistic: 1 / (1 + exp(-(intercept + slope · score))), slope above 0. isotonic: straight lines between `points`,
    (score, probability) by rising score, and constant beyond the first and the last.
    """

    kind: Literal["logistic", "isotonic"]
    intercept: float = 0.0
    slope: float = 0.0
    points: tuple[tuple[float, float], ...] = ()

    def of(self, score: ArrayLike) -> Reals:
        """P(relevant) of scores, float64 of their shape.

        >>> RelevanceCurve("isotonic", points=((0.0, 0.2), (1.0, 0.6))).of([-1.0, 0.5, 2.0]).tolist()
        [0.2, 0.4, 0.6]
        """
        values = np.asarray(score, dtype=np.float64)
        if self.kind == "logistic":
            return np.asarray(special.expit(self.intercept + self.slope * values))
        scores, probabilities = np.array(self.points).T
        return np.asarray(np.interp(values, scores, probabilities))

    @property
    def is_sound(self) -> bool:
        """Whether it gives a probability of every score, and never a lower one of a higher score."""
        if self.kind == "logistic":
            return math.isfinite(self.intercept) and math.isfinite(self.slope) and self.slope > 0
        finite = all(math.isfinite(score) and 0 <= probability <= 1 for score, probability in self.points)
        rises = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(self.points))
        return bool(self.points) and finite and rises


@dataclass(frozen=True)
class RelevanceThreshold:
    """The documents of P(relevant) `probability` or more, where dev queries reach the precision `wanted` from there on.

    probability: in hundredths; None where no such threshold was reached. precision: of these documents; recall: the
    share of the candidates' relevant documents that they hold; documents: how many a query has.
    """

    wanted: float
    probability: float | None = None
    precision: Estimate | None = None
    recall: float = 0.0
    documents: float = 0.0

    def said(self) -> str:
        """Threshold and precision, if reached."""
        return (
            f"{self.probability:.2f} or more: precision {interval(self.precision)}, {self.recall:.0%} of what is "
            f"relevant, {self.documents:.1f} documents a query"
        )


@dataclass(frozen=True)
class RelevanceCheck:
    """How probabilities agree with what is known of queries that their curve was not fitted to.

    truth: who says what is relevant. relevant: how many of `pairs` are, and `expected` how many by the probabilities.
    error: over all candidates, most of which are near 0; likely: over those of LIKELY or more, None of too few.
    curve: (mean probability, share that is relevant) of the others and of the likely ones in equal parts.
    """

    truth: Truth
    queries: int
    pairs: int
    relevant: float
    expected: float
    error: Calibration
    likely: Calibration | None
    curve: tuple[tuple[float, Estimate], ...]
    thresholds: tuple[RelevanceThreshold, ...]

    def said(self) -> str:
        """Its calibration error, of likely documents where there are enough."""
        one, which = (self.likely, "likely documents") if self.likely else (self.error, "all documents")
        plain, chance = one.ece or 0.0, one.ece_if_calibrated or 0.0
        return f"calibration error {plain:.3f} over {which}, by chance {chance:.3f}, beyond it {interval(one.rms)}"


@dataclass(frozen=True)
class Relevance:
    """A curve, and its checks: on dev queries out of fold, on test queries (None: nobody says what is relevant).

    It holds for candidates like those it was fitted to: the top `depth` of the run's first stage.
    """

    curve: RelevanceCurve
    depth: int
    dev: RelevanceCheck
    test: RelevanceCheck | None = None

    def said(self) -> Iterator[str]:
        """Lines that say what it is worth."""
        yield (
            f"P(relevant): {self.curve.kind}, fitted to {self.dev.pairs:,} documents of {self.dev.queries:,} dev "
            f"queries, by {self.dev.truth}"
        )
        for name, one in (("dev, out of fold", self.dev), ("test", self.test)):
            if one is None:
                continue
            yield f"  {name}, by {one.truth}: {one.said()}"
            yield from (f"    {each.said()}" for each in one.thresholds if each.probability is not None)

    def write(self, folder: Path) -> None:
        """Write the file."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def interval(found: Estimate | None) -> str:
    """An estimate with its interval, as text."""
    if found is None or found.mean is None:
        return "unknown"
    ends = "" if found.low is None or found.high is None else f" [{found.low:.3f}, {found.high:.3f}]"
    return f"{found.mean:.3f}{ends}"


def from_json(content: Mapping[str, Any]) -> Relevance:
    """What went through JSON."""
    return TypeAdapter(Relevance).validate_python(content)


def find(folder: Path) -> Relevance | None:
    """What the file of an exported folder says; None where it has none. Raises DataError where the file is damaged."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        made = TypeAdapter(Relevance).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(f"is damaged: {place} {first['msg']}".replace(":  ", ": "), str(path), _ANEW) from None
    if not made.curve.is_sound:
        raise DataError("is damaged: its curve is not increasing", str(path), _ANEW)
    return made


def missing(place: str) -> ConfigError:
    """Message if P(relevant) is requested from a model without a curve."""
    return ConfigError(
        "the model has no calibrated P(relevant)",
        place,
        "export it from a run with dev queries that have labels or judges' answers (`anmi show RUN` says why it has "
        "none), or ask for no least relevance",
    )


_ANEW = "export the model anew"
