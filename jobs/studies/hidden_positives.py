"""Known positives, hidden from the miner and counted among what it mines: how often is a mined negative relevant?

Q queries, S seeds of the hiding, K depths. A strategy is a ranking of documents by query; mining takes the first of it
that are not shown as positive. What is found is relevant beyond doubt; what nobody judged is not counted, so a rate
bounds the share of false negatives from below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anmi_ray.identity import digest, hash_sample, rng

Design = Literal["half", "one"]
"""half: a random half is hidden; one: all but one, as where a label a query is all there is."""
Grades = Mapping[bytes, int]
Ranking = Sequence[bytes]
Reals = NDArray[np.float64]


def hidden(query: bytes, positives: Sequence[bytes], design: Design, seed: int) -> set[bytes]:
    """Which of the positives the miner is not shown; it is shown one at least.

    half: n/2 of n by hash, an odd n rounded by a coin, so half of all on average. A single positive is shown.

    >>> docs = [bytes([i]) for i in range(5)]
    >>> len(hidden(b"q", docs, "half", 0)) in (2, 3), len(hidden(b"q", docs, "one", 0))
    (True, 4)
    """
    coin = digest("coin", query, design, seed)[0] & 1
    count = len(positives) - 1 if design == "one" else (len(positives) + coin * (len(positives) > 1)) // 2
    return set(hash_sample(positives, count, "hidden", query, design, seed))


def at_random(query: bytes, documents: Sequence[bytes], size: int, seed: int) -> list[bytes]:
    """`size` of all documents, or as many as there are, drawn by the query and the seed."""
    drawn = rng("random negatives", query, seed).choice(len(documents), min(size, len(documents)), replace=False)
    return [documents[i] for i in drawn.tolist()]


@dataclass(frozen=True)
class Counts:
    """What was mined, float64[S, Q, K]: documents, those of the grade that is hidden, of any grade, and never judged.

    hidden: float64[S, Q], the positives that there were to find.
    """

    taken: Reals
    positive: Reals
    related: Reals
    unjudged: Reals
    hidden: Reals

    @property
    def rate(self) -> Reals:
        """The share of the mined that is a hidden positive, 0 where nothing was mined."""
        return self.positive / np.maximum(self.taken, 1.0)

    @property
    def related_rate(self) -> Reals:
        """The share of the mined with any positive grade."""
        return self.related / np.maximum(self.taken, 1.0)

    @property
    def unjudged_rate(self) -> Reals:
        """The share of the mined that nobody judged for the query."""
        return self.unjudged / np.maximum(self.taken, 1.0)

    @property
    def recall(self) -> Reals:
        """The share of the hidden positives that was mined."""
        return self.positive / self.hidden[:, :, None]


def count(
    ranking: Callable[[bytes, int], Ranking],
    grades: Mapping[bytes, Grades],
    least: int,
    design: Design,
    seeds: int,
    depths: Sequence[int],
) -> Counts:
    """Mine the first of `ranking(query, seed)` for every query of `grades`, each seed hiding others.

    `least` is the grade from which a document is positive; queries must have two positives or more.
    """
    shape = seeds, len(grades), len(depths)
    found = {name: np.zeros(shape) for name in ("taken", "positive", "related", "unjudged")}
    there = np.zeros(shape[:2])
    for q, (query, graded) in enumerate(sorted(grades.items())):
        positives = sorted(doc for doc, grade in graded.items() if grade >= least)
        for seed in range(seeds):
            concealed = hidden(query, positives, design, seed)
            there[seed, q] = len(concealed)
            shown = set(positives) - concealed
            mined = list(_unshown(ranking(query, seed), shown, depths[-1]))
            flags = {
                "taken": np.ones(len(mined)),
                "positive": np.array([doc in concealed for doc in mined], dtype=float),
                "related": np.array([graded.get(doc, 0) > 0 for doc in mined], dtype=float),
                "unjudged": np.array([doc not in graded for doc in mined], dtype=float),
            }
            for name, flag in flags.items():
                found[name][seed, q] = [flag[:depth].sum() for depth in depths]
    return Counts(hidden=there, **found)


def _unshown(ranking: Ranking, shown: set[bytes], size: int) -> Iterator[bytes]:
    left = size
    for doc in ranking:
        if not left:
            return
        if doc not in shown:
            left -= 1
            yield doc


def judged_often(grades: Mapping[bytes, Grades], least: int, positives: int = 2) -> dict[bytes, Grades]:
    """The queries with so many positives or more: of fewer, none can be hidden while one is shown."""
    return {
        query: graded
        for query, graded in grades.items()
        if sum(grade >= least for grade in graded.values()) >= positives
    }
