"""What the process that searches says to the one that answers HTTP, which loads no index for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anmi_ray.evaluation.served_fusion import ServedFusion


@dataclass(frozen=True)
class About:
    """What can be searched: by system what it does, the documents of a ranking, those that are reranked if not said.

    `notes`: what was made anew at the start. `examples`: test queries of the run. `fingerprint`: of the model whose
    vectors the student's are, and to whose scores the fusion's weights were fitted.
    """

    run: str
    documents: int
    systems: dict[str, str]
    depth: int
    candidates: int
    fusion: ServedFusion | None
    examples: tuple[str, ...]
    notes: tuple[str, ...]
    fingerprint: str


class QueryVector(NamedTuple):
    """A vector float32[d] of a query, and the fingerprint of the model that gave it."""

    vector_d: NDArray[np.float32]
    fingerprint: str


@dataclass(frozen=True)
class FoundDocument:
    """A document that a system ranks: its id of the collection, its texts, and each system's rank and score.

    The texts are None where it stands too deep in every ranking to be shown or reranked, and then the id is, too.
    """

    texts: tuple[str, str, str] | None
    places: dict[str, tuple[int, float]]
