"""A run's fusion for whoever serves its model: weights in a file beside the model's, added to scores as the run did.

The file fusion.json of an exported folder names the systems whose scores are added, the reranker's first, with their
weights, and says on how many dev queries these were chosen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.evaluation import fusion

FILE = "fusion.json"


@dataclass(frozen=True)
class ServedFusion:
    """Weights by system, the reranker's first; they sum to 1. `queries`: the dev queries that they were chosen on."""

    weights: dict[str, float]
    measure: str
    queries: int
    normalisation: str = "zscore"

    @property
    def partners(self) -> tuple[str, ...]:
        """The systems whose scores are added: of the first stage, and other rerankers."""
        return tuple(self.weights)[1:]

    def check(self, given: Mapping[str, Any], place: str) -> None:
        """Raise ConfigError where the systems `given` are not the partners."""
        if set(given) != set(self.partners):
            wanted, there = ", ".join(self.partners), ", ".join(sorted(given)) or "nothing"
            raise ConfigError(
                f"its weights are of {wanted}, and the scores of {there} are given",
                place,
                "give the scores of each of them under its name",
            )

    def fuse(self, reranked: pa.Table, run: pa.Table, partners: Mapping[str, pa.Table], depth: int) -> pa.Table:
        """`run` ordered by the weighted sum of all scores over its top `depth`, as `evaluation.fusion.fuse` says."""
        tables = [partners[name] for name in self.partners]
        return fusion.fuse(reranked, run, list(self.weights.values()), depth, "reranked", tables)

    def write(self, folder: Path) -> None:
        """Write the file."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def of_sweep(sweep: Mapping[str, Any]) -> ServedFusion:
    """The fusion whose weights were chosen on dev queries: a WeightSweep as JSON, of an older version too."""
    weights = dict(zip(sweep["parts"], sweep["chosen"], strict=True))
    return ServedFusion(weights, sweep["measure"], sweep["queries"], sweep["normalisation"])


def read(folder: Path) -> ServedFusion:
    """The fusion of an exported folder. Raises ConfigError where it has none, DataError where the file is damaged."""
    path = folder / FILE
    if not path.is_file():
        raise ConfigError(
            "the model has no weights of a fusion",
            str(path),
            "export it from a run that has chosen them on dev queries, or give no other scores",
        )
    try:
        made = TypeAdapter(ServedFusion).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        what = f"is damaged: {where} {first['msg']}".replace(":  ", ": ")  # no JSON at all is at no place
        raise DataError(what, str(path), "export the model anew") from None
    if len(made.weights) < 2 or made.normalisation != "zscore":
        raise DataError("names no other system, or a scale that is not read", str(path), "export it anew")
    if not fusion.are_weights(list(made.weights.values())):
        said = ", ".join(f"{name} {weight:g}" for name, weight in made.weights.items())
        what = f"is damaged: weights {said} are not numbers of at least 0 with sum 1"
        raise DataError(what, str(path), "export the model anew")
    return made
