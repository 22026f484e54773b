"""Settings of the compare stage: which pairs of a query's candidates are judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from anmi_ray.config.base import Settings
from anmi_ray.config.paths import PathOrUri

Objective = Literal["top", "negatives", "all"]


class CompareConfig(Settings):
    """The design of the comparison graph. A query costs about n * degree / 2 comparisons."""

    by_content = frozenset({"path"})

    design: Literal["k-regular", "adaptive", "imported"] = "k-regular"
    """Graph per query. k-regular: a union of random Hamiltonian cycles, repaired to be simple; adaptive: one such
    cycle, then in rounds the pairs whose answers tell most of what `objective` wants; imported: the pairs of a file of
    preferences whose documents are both candidates."""
    objective: Objective = "top"
    """adaptive: what to become certain of. top: which documents are the best ten, and how good; negatives: gaps of up
    to 450 points to the anchors, which decide what is a negative; all: every rating."""
    rounds: int = Field(default=5, ge=2, le=50)
    """adaptive: rounds of asking, rating and choosing; the first asks the cycle, the others equal parts of the rest."""
    target_error: float | None = Field(default=None, gt=0)
    """adaptive: points. Stop asking about a query once the standard error of what `objective` wants is, or is expected
    to become, this small; null: ask as much as `degree` allows."""
    degree: int = Field(default=8, ge=2, le=1000)
    """k-regular: distinct documents that each document is compared with; queries of at most degree + 1 documents get
    every pair. Even degrees are exact; odd degrees leave one of an odd number of documents with degree - 1. adaptive:
    the mean over a query's documents, at most."""
    path: PathOrUri | None = Field(default=None, min_length=1)
    """imported: .csv, .tsv, .jsonl (each also .gz or .zst) or .parquet with the columns query_id, doc_a, doc_b,
    preference, as anmi audit reads them; ids are the collection's."""

    def _problems(self) -> Iterator[str]:
        if self.design == "imported" and self.path is None:
            yield "design: imported needs `path`, the file of preferences whose pairs are compared"
        if self.design != "imported" and self.path is not None:
            yield "`path` belongs to design: imported; remove it or set design: imported"
        if self.design == "imported" and self._changed(["degree"]):
            yield "`degree` belongs to designs k-regular and adaptive; remove it or set one of these"
        for name in self._changed(["objective", "rounds", "target_error"]) if self.design != "adaptive" else ():
            yield f"`{name}` belongs to design: adaptive; remove it or set design: adaptive"
