"""Real judges' grades beside real judges' preferences: what pointwise.py measures of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.csv as pacsv

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.arrays import Flags, Ints, Reals
from anmi_ray.core.identity import doc_id, query_id, rng
from anmi_ray.core.scale import normal_cdf, normal_quantile
from anmi_ray.evaluation.replicates import Contrast, contrast, family
from jobs.studies import harness
from jobs.studies.designs import scored_by
from jobs.studies.harness import Table
from jobs.studies.judge_strengths import Graded, grades, measured
from jobs.studies.pointwise_worlds import ReadingNoise, graded, with_ranks
from jobs.studies.replayed_designs import ALL, read, replay

LEAST = 10  # pairs of a query from which it counts
DEGREES = (2.0, 4.0, 6.0)
Given = dict[tuple[str, str], float]  # grades by query and document
_GRID = np.geomspace(0.05, 20.0, 60)  # noises
_POINTS = 600  # of the distribution of relevance


@dataclass(frozen=True)
class UnlikePairs:
    """Pairs that people grade unlike: the query of each, by how much, and how right each system puts it (1, 1/2, 0)."""

    query: Ints
    gap: Reals
    right: dict[str, Reals]

    def mean(self, of: Reals, there: Flags) -> Reals:
        """Of such pairs, by query that has LEAST of them."""
        count = np.bincount(self.query[there])
        return (np.bincount(self.query[there], of[there]) / np.maximum(count, 1))[count >= LEAST]

    def by_query(self, name: str, gap: float = 0.0) -> Reals:
        """How right a system is in pairs of this gap, 0: in all."""
        return self.mean(self.right[name], (self.gap == gap) | (gap == 0.0))


def read_qrels(path: Path) -> Given:
    """A file of qrels: query, anything, document, grade, between spaces."""
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    return {(query, doc): float(grade) for query, _, doc, grade in rows}


def preferred(gpt: Path, people: Given, given: dict[str, Given]) -> UnlikePairs:
    """GPT-4o's preferences of round 0 beside grades of the same passages."""
    table = pacsv.read_csv(gpt / "dl2019_judgments.csv")
    columns = [[str(cell) for cell in table[name].to_pylist()] for name in ("round", "qid", "winner", "loser")]
    rows = [((query, won), (query, lost)) for first, query, won, lost in zip(*columns, strict=True) if first == "0"]
    gap = np.array([people[won] - people[lost] for won, lost in rows])
    kept = np.flatnonzero(gap)
    right = {"preferences": 0.5 + 0.5 * np.sign(gap)}
    for name, grade_of in given.items():
        said = np.array([grade_of[won] - grade_of[lost] for won, lost in rows])
        right[name] = 0.5 + 0.5 * np.sign(said) * np.sign(gap)
    query = np.unique([won[0] for won, _ in rows], return_inverse=True)[1]
    return UnlikePairs(query[kept], np.abs(gap[kept]), {name: one[kept] for name, one in right.items()})


def compared(query: Ints, people: Reals, judges: dict[str, Reals]) -> UnlikePairs:
    """All pairs of a query's passages that people grade unlike, by grades; pairs of two that tie are one half."""
    gaps: list[Reals] = []
    queries: list[Ints] = []
    right: dict[str, list[Reals]] = {name: [] for name in judges}
    for q in range(int(query.max()) + 1):
        at = np.flatnonzero(query == q)
        first, second = (at[side] for side in np.nonzero(people[at][:, None] > people[at][None, :]))
        gaps.append(people[first] - people[second])
        queries.append(np.full(len(first), q))
        for name, grade in judges.items():
            right[name].append(0.5 + 0.5 * np.sign(grade[first] - grade[second]))
    every = {name: np.concatenate(parts) for name, parts in right.items()}
    return UnlikePairs(np.concatenate(queries), np.concatenate(gaps), every)


@cache
def curve(people: tuple[float, ...], given: tuple[float, ...] = ()) -> Reals:
    """How right a judge of each noise of _GRID puts pairs of unlike grades of people, who give them in these shares.

    given: the shares in which the judge gives grades; none: it compares, and the noise is that of a comparison.
    """
    theta = normal_quantile((np.arange(_POINTS) + 0.5) / _POINTS)
    grade = graded(theta, people, 1.0)
    if not given:
        first, second = np.nonzero(grade[:, None] > grade[None, :])
        gap = theta[first] - theta[second]
        return np.array([normal_cdf(gap / noise).mean() for noise in _GRID])
    level = normal_quantile(np.cumsum(given)[:-1] / np.sum(given))
    found = np.empty(len(_GRID))
    for at, noise in enumerate(_GRID):
        below = normal_cdf((math.sqrt(1.0 + noise**2) * level - theta[:, None]) / noise)
        chance = np.diff(below, axis=1, prepend=0.0, append=1.0)  # of each grade, by document
        of_grade = np.stack([chance[grade == one].sum(axis=0) for one in range(len(people))])
        right = of_grade @ (np.tri(len(given), k=-1) + 0.5 * np.eye(len(given))) @ of_grade.T
        size = np.bincount(grade.astype(np.int64))
        found[at] = np.tril(right, -1).sum() / np.tril(np.outer(size, size), -1).sum()
    return found


def noise_of(right: float, people: tuple[float, ...], given: tuple[float, ...] = ()) -> float:
    """The noise with which a judge puts so many pairs right."""
    return float(np.interp(-right, -curve(people, given), _GRID))


def shares(values: Reals, least: int = 0) -> tuple[float, ...]:
    """How often each grade from `least` to 3 is given."""
    return tuple(float(np.mean(values == grade)) for grade in range(least, 4))


def ratio_of(of: UnlikePairs, people: tuple[float, ...], given: tuple[float, ...], name: str) -> tuple[Reals, Reals]:
    """(noise of a preference, of a grade, ratio), and its 95 % intervals over queries, float64[2, 3]."""
    rights = np.stack([of.by_query(one) for one in ("preferences", name)])

    def ratio(at: Ints | slice) -> Reals:
        pair, point = rights[:, at].mean(axis=1)
        found = noise_of(float(pair), people), noise_of(float(point), people, given)
        return np.array([*found, found[0] / (math.sqrt(2.0) * found[1])])

    random = rng("pointwise", "ratio")
    drawn = [ratio(random.integers(0, rights.shape[1], rights.shape[1])) for _ in range(2000)]
    return ratio(slice(None)), np.quantile(drawn, (0.025, 0.975), axis=0)


def ratios(of: UnlikePairs, by_people: tuple[float, ...], people: Given, named: dict[str, Given]) -> Table:
    """Noise of preferences and of grades by name, and their ratio."""
    rows = []
    for name, grade_of in named.items():
        said = np.array([grade_of[one] for one, grade in people.items() if grade >= 1.0])
        level, ends = ratio_of(of, by_people, shares(said), name)
        cells = [f"{one:.2f} [{low:.2f}, {high:.2f}]" for one, low, high in zip(level, *ends, strict=True)]
        rows.append((name, *cells))
    columns = ("grades", "noise of a preference", "noise of a grade", "ratio")
    return Table("TREC DL 2019: how noisy an answer about a pair is, and a grade", columns, rows)


def of_2019(of: UnlikePairs, names: Sequence[str]) -> list[Table]:
    """How often each is right, and preferences less grades."""
    rows: list[tuple[str, ...]] = []
    for name, right in of.right.items():
        cells = [harness.interval(contrast(name, "", [of.by_query(name, gap)[None]])) for gap in (1.0, 2.0)]
        told = right != 0.5
        rows.append((name, *cells, f"{np.mean(~told):.2f}", f"{right[told].mean():.3f}"))
        if name != "preferences":
            other = of.right["preferences"]
            rows.append((f"preferences, where {name} tie", "", "", "", f"{other[~told].mean():.3f}"))
            rows.append((f"preferences, where {name} do not", "", "", "", f"{other[told].mean():.3f}"))
    columns = ("judgments", "a gap of 1", "a gap of 2", "ties", "of told pairs, all together")
    title = f"TREC DL 2019: share of {len(of.gap):,} pairs put right, by how far apart people grade them"
    differences: list[Contrast] = []
    for name in names:
        less = of.right["preferences"] - of.right[name]
        scopes = {"gap 1": of.gap == 1.0, "gap 2": of.gap == 2.0, "all": of.gap > 0.0, "told": of.right[name] != 0.5}
        differences += [contrast(f"preferences, {scope}", name, [of.mean(less, there)[None]])
                        for scope, there in scopes.items()]  # fmt: skip
    return [
        Table(title, columns, rows),
        harness.contrasts_table("The same pairs; told: those that grades do not tie", family(differences)),
    ]


def of_2023(path: str) -> tuple[Table, ReadingNoise]:
    """How noisy one grade of 33 language models is, how much of it they share, how a judge's level moves."""
    table, people, grade_NJ, teams = grades(path)
    query = np.unique(table["qid"].to_pylist(), return_inverse=True)[1]
    mean = np.nanmean(grade_NJ, axis=1)
    names = [str(j) for j in range(len(teams))]
    of = compared(query, people, {name: grade_NJ[:, j] for j, name in enumerate(names)} | {"all": mean})
    one = float(np.mean([of.by_query(name).mean() for name in names]))
    every = float(of.by_query("all").mean())
    by_people = shares(people)
    single = noise_of(one, by_people, tuple(np.mean([shares(grade) for grade in grade_NJ.T], axis=0).tolist()))
    common = noise_of(every, by_people) / math.sqrt(2.0)
    size = np.bincount(query)
    level = np.array([np.bincount(query, grade - people) / size for grade in grade_NJ.T])
    level -= level.mean(axis=1, keepdims=True)
    own = float((level - level.mean(axis=0)).std())
    step = float(np.mean([grade.std() for grade in grade_NJ.T])) / math.sqrt(
        1.0 + single**2
    )  # grades a sd of relevance
    shift = own / step
    rows = [
        ("pairs right, one judge's grades", f"{one:.3f}"),
        ("pairs right, the mean of all", f"{every:.3f}"),
        ("ties of one judge", f"{np.mean([np.mean(of.right[name] == 0.5) for name in names]):.2f}"),
        ("noise of one grade", f"{single:.2f}"),
        ("noise that all judges share", f"{common:.2f}"),
        ("share of its variance that is alike", f"{min(common / single, 1.0) ** 2:.2f}"),
        ("a query's level above people's, sd, grades: of all judges", f"{level.mean(axis=0).std():.2f}"),
        ("the same, of one judge beyond the others", f"{own:.2f}"),
    ]
    title = f"TREC DL 2023: {len(teams)} language models' grades of {len(people):,} passages"
    return Table(title, ("", "value"), rows), ReadingNoise(single, min(common / single, 1.0) ** 2, 1.0, shift)


def replays(gpt: str, passages: str, given: dict[str, Given]) -> Table:
    """nDCG@10 and pairs right by people's grades, of real grades and real preferences, by cost."""
    of, _ = read(gpt, passages)
    key = {(query, doc): value for query, doc, value in _ids(given)}
    keys = list(zip(of.candidates["query_id"].to_pylist(), of.candidates["doc_id"].to_pylist(), strict=True))
    grade = np.array([key[one] for one in keys])  # float64[D, judges]
    query = np.unique([one[0] for one in keys], return_inverse=True)[1]
    systems: dict[tuple[str, float], Reals] = {("GPT-4o's grades", 1.0): grade[:, 0]}
    if grade.shape[1] > 1:
        systems["GPT-4o's and GPT-4's grades", 2.0] = grade.mean(axis=1)
    graded_first = replace(of, candidates=with_ranks(of.candidates, (4.0 - grade[:, 0]).astype(np.int64)))
    for degree in (*DEGREES, ALL):
        for name, world, system, cost in (
            ("preferences, top", of, 1, 0.0),
            ("grades first, top", graded_first, 2, 1.0),
        ):
            pairs = replay(world, "top" if degree < ALL else "random", degree, 0)
            score = np.zeros(len(grade))
            for _, at, scores in scored_by(world, pairs, world.judgments(pairs), RateConfig()):
                score[at] = scores[system]
            systems[name, cost + 2.0 * pairs.num_rows / len(grade)] = score
    none = np.empty((0, 2), np.int64), np.empty((0, 1))
    values = {}
    for name, score in systems.items():
        each = [measured(Graded(of.truth[query == q], *none), score[query == q]) for q in range(query.max() + 1)
                if len(np.unique(of.truth[query == q])) > 1]  # fmt: skip
        values[name] = np.array(each).T[[2, 0]]
    base = values["GPT-4o's grades", 1.0]
    rows = []
    for (name, cost), one in values.items():
        levels = [harness.interval(contrast(name, "", [value[None]])) for value in one]
        less = [str(contrast(name, "grades", [(a - b)[None]])) for a, b in zip(one, base, strict=True)]
        rows.append((name, f"{cost:.1f}", *itertools.chain(*zip(levels, less, strict=True))))
    columns = (
        "judgments",
        "readings a passage",
        "nDCG@10",
        "less GPT-4o's grades",
        "pairs right",
        "less GPT-4o's grades",
    )
    return Table("TREC DL 2019, replayed: rankings by real judgments", columns, rows)


def _ids(given: dict[str, Given]) -> list[tuple[bytes, bytes, list[float]]]:
    first, *rest = given.values()
    return [(query_id(query), doc_id(doc), [value, *(one.get((query, doc), value) for one in rest)])
            for (query, doc), value in first.items()]  # fmt: skip
