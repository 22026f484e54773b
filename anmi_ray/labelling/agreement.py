"""How far judges agree with people, and people with each other.

Shares are of pairs, a pair with several people's answers counting as their mean, so that all pairs weigh alike; of the
random share of pairs they estimate the agreement over all pairs of the run without bias. Kappas count answers. Unsure
answers and judges' ties take no side and are counted apart. Intervals are 95 %, over queries: Wilson's at the effective
size for shares, a percentile bootstrap for kappas. Letters: P pairs, J judges, H people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from anmi_ray.core.arrays import Flags, Ints, Reals
from anmi_ray.evaluation.judged import kappa_of
from anmi_ray.evaluation.pairwise_measures import Draws, percentiles, wilson
from anmi_ray.evaluation.significance import Estimate
from anmi_ray.judging.audit.intervals import MIN_QUERIES

TERCILES = ("small", "middle", "large")
KINDS = ("question", "keywords", "sentence")
"""Of queries: one that asks (a question mark, or begins as English questions do), one of few words, another."""
_KEYWORDS = 4  # words at most
_ASKING = re.compile(r"(how|what|when|where|which|who|whom|whose|why)\b")
_VERB = re.compile(r"(are|can|could|did|do|does|has|have|is|should|was|were|will)\b")


@dataclass(frozen=True)
class PeopleAnswers:
    """P pairs that somebody answered: 1 for doc_a, -1 for doc_b, 0 for neither, NaN where nobody was asked or failed.

    query int[P], in 0..; kind[P]: its place in KINDS; random[P]: of the random share; gap[P]: how far the ratings
    of its documents are apart, Elo points, NaN where unknown; judged[P, J]; said[P, H].
    """

    judges: tuple[str, ...]
    people: tuple[str, ...]
    query: Ints
    kind: Ints
    random: Flags
    gap: Reals
    judged: Reals
    said: Reals


def kind_of(query: str) -> int:
    """The place in KINDS of what a query looks like.

    >>> [KINDS[kind_of(text)] for text in ("How are lists sorted", "sort list", "a list that is sorted in place")]
    ['question', 'keywords', 'sentence']
    """
    text = query.strip().lower()
    long = len(text.split()) > _KEYWORDS
    if text.endswith(("?", "？", "؟")) or _ASKING.match(text) or (long and _VERB.match(text)):
        return KINDS.index("question")
    return KINDS.index("sentence" if long else "keywords")


def agreement(answers: PeopleAnswers, least: float) -> dict[str, Any]:
    """JSON-able figures: `judges` by name, `people` (each two, and all together), `gaps` (edges of the terciles).

    A judge is `below` where the upper end of its interval over the random share lies below `least`.
    """
    edges = _edges(answers)
    judges = {name: _judge(answers, answers.judged[:, j], edges, least) for j, name in enumerate(answers.judges)}
    return {"judges": judges, "people": _people(answers), "gaps": edges, "least": least}


def _judge(answers: PeopleAnswers, judge: Reals, edges: list[float] | None, least: float) -> dict[str, Any]:
    sided = np.isin(answers.said, (1.0, -1.0))
    by_people = sided.any(axis=1)
    counted = by_people & np.isin(judge, (1.0, -1.0))
    alike = (sided & (answers.said == judge[:, None])).sum(axis=1) / np.maximum(sided.sum(axis=1), 1)
    random = _share(alike, answers.query, counted & answers.random)
    pair, person = np.nonzero(sided & counted[:, None])
    found: dict[str, Any] = {
        "random": asdict(random),
        "all": asdict(_share(alike, answers.query, counted)),
        "kappa": asdict(_kappa(answers.said[pair, person], judge[pair], answers.query[pair])),
        "ties": int((by_people & (judge == 0.0)).sum()),
        "silent": int((by_people & np.isnan(judge)).sum()),
        "below": random.high is not None and random.high < least,
    }
    groups: dict[str, tuple[tuple[str, ...], Ints]] = {"by_kind": (KINDS, answers.kind)}
    if edges is not None:
        tercile = np.where(np.isnan(answers.gap), -1, np.searchsorted(edges, answers.gap, side="right"))
        groups["by_gap"] = TERCILES, tercile.astype(np.int64)
    for key, (names, group) in groups.items():
        parts = {name: counted & (group == number) for number, name in enumerate(names)}
        found[key] = {name: asdict(_share(alike, answers.query, part)) for name, part in parts.items()}
    return found


def _people(answers: PeopleAnswers) -> dict[str, Any]:
    """By "a ~ b" and together: the share of pairs on whose side two people agree, of those on which both took one."""
    found: dict[str, Any] = {}
    first: list[Reals] = []
    second: list[Reals] = []
    query: list[Ints] = []
    for i, j in combinations(range(len(answers.people)), 2):
        one, other = answers.said[:, i], answers.said[:, j]
        both = np.isin(one, (1.0, -1.0)) & np.isin(other, (1.0, -1.0))
        if both.any():
            first.append(one[both])
            second.append(other[both])
            query.append(answers.query[both])
            found[f"{answers.people[i]} ~ {answers.people[j]}"] = _two(first[-1], second[-1], query[-1])
    together = _two(np.concatenate(first), np.concatenate(second), np.concatenate(query)) if found else None
    return {"each": found, "together": together}


def _two(first: Reals, second: Reals, query: Ints) -> dict[str, Any]:
    share = _share((first == second).astype(np.float64), query, np.ones(len(first), np.bool_))
    return {"share": asdict(share), "kappa": asdict(_kappa(first, second, query))}


def _share(alike: Reals, query: Ints, of: Flags) -> Estimate:
    return wilson(alike[of], query[of])


def _kappa(first: Reals, second: Reals, query: Ints) -> Estimate:
    """Cohen's kappa of sides 1 and -1, with an interval where there are queries enough to draw again."""
    if not len(first):
        return Estimate(None, None, None, 0)
    cell = 2 * (first < 0) + (second < 0)
    known, place = np.unique(query, return_inverse=True)
    sums = np.bincount(4 * place + cell, minlength=4 * len(known)).reshape(len(known), 4).astype(np.float64)
    value = float(kappa_of(sums.sum(axis=0)))
    if np.isnan(value):
        return Estimate(None, None, None, len(first))
    many = len(known) >= MIN_QUERIES
    low, high = percentiles(kappa_of(Draws(len(known)).sums(sums))) if many else (None, None)
    if low == high:  # all agree: nothing varies that could be drawn again
        return Estimate(value, None, None, len(first))
    return Estimate(value, low, high, len(first))


def _edges(answers: PeopleAnswers) -> list[float] | None:
    """The two gaps that part the pairs in three of equal size; None where they do not differ or nothing is rated."""
    known = answers.gap[~np.isnan(answers.gap)]
    if len(known) < len(TERCILES) or not np.ptp(known):
        return None
    return [float(edge) for edge in np.quantile(known, [1 / 3, 2 / 3])]


def named_below(figures: Mapping[str, Any]) -> list[str]:
    """The judges whose agreement with people is below the bound."""
    return [name for name, judge in figures["judges"].items() if judge["below"]]
