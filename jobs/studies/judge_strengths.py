"""Can a judge's own strength be told from the judges' agreement alone, and is it worth more than equal weights?

    python -m jobs.studies.judge_strengths --labels FILE [--panels 20]

FILE holds the grades that 33 language models and people gave to the documents of TREC DL 2023 (columns qid, docid,
human, then a judge a column). Of a query's documents an 8-regular graph of pairs is drawn; a judge prefers the document
that it grades higher, equal grades are ties. Ratings are Bradley-Terry's, posterior modes under N(0, 1); people's
grades alone measure them, and no rule but the last sees them. Rules:
`equal`: all judges count alike. `agreement`: a judge's answers count by the log odds of its agreeing with the mean
vote of other teams' judges, where neither ties. `joint`: every judge has a discrimination a, P(i beats j) =
σ(a (θ_i − θ_j)), the maximum of the likelihood over ratings and discriminations at once (judge-aware
Bradley-Terry-Luce). `others`: the same discrimination, but measured against ratings that judges of other teams give,
ties left out. `people`: a judge counts by the log odds of agreeing with people's grades, a bound for whoever knows
them. Panels: all judges, and drawn panels of 3, 5 and 10 of at least two teams.
Claim: strengths from agreement alone put more pairs right than equal weights. It is refuted where their difference is
not told from 0, or below it.

To read: a cell is the difference from `equal`, with its 95 % interval over queries, panels of a size averaged.
`correlation` is that of a rule's strengths with the judges' real accuracy, the share of pairs of unlike people's grades
that a judge puts right where it does not tie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import kendalltau

from anmi_ray.comparisons.graph import k_regular
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import rng
from anmi_ray.evaluation.replicates import Contrast, contrast, family
from jobs.studies import harness
from jobs.studies.harness import Results, Table

STUDY = harness.study("judge_strengths", "A judge's own strength", __doc__ or "")
MEASURES = ("pairs right", "τ-b", "nDCG@10")
DEGREE = 8
SIZES = (3, 5, 10)
ROUNDS, STEPS = 30, 50  # of strengths and ratings in turn; of Newton's method
LEAST, CLOSE = 0.01, 1e-6  # the smallest strength; the step at which a fit has ended
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Graded:
    """A query: people's grades float64[D], pairs int64[E, 2], votes float64[E, J] for a pair's first document.

    A vote is 1, 0, 1/2 for a tie, NaN where the judge gave no grade.
    """

    people: Reals
    pairs: NDArray[np.int64]
    votes: Reals

    @property
    def sides(self) -> Reals:
        """float64[E]: -1, 0 or 1, which document of a pair people grade higher."""
        return np.sign(self.people[self.pairs[:, 0]] - self.people[self.pairs[:, 1]])


@dataclass(frozen=True)
class Panel:
    """Judges that answer together: their votes on all queries, and the team of each."""

    queries: Sequence[Graded]
    teams: Sequence[str]

    def without(self, team: str) -> tuple[Panel, NDArray[np.bool_]]:
        """The panel's other teams, and bool[J]: which judges they are."""
        kept = np.array([one != team for one in self.teams])
        queries = [Graded(one.people, one.pairs, one.votes[:, kept]) for one in self.queries]
        return Panel(queries, [one for one in self.teams if one != team]), kept


def read(path: str) -> Panel:
    """All judges of a file of grades. Raises ConfigError where it has not the columns."""
    table, people_N, grade_NJ, teams = grades(path)
    query_N = np.array(table["qid"].to_pylist())
    queries = []
    for query in sorted(set(query_N.tolist())):
        rows = np.flatnonzero(query_N == query)
        pairs = k_regular(len(rows), DEGREE, rng("judge-strengths", "pairs", query)).astype(np.int64)
        grade_DJ = grade_NJ[rows]
        queries.append(
            Graded(people_N[rows], pairs, 0.5 + 0.5 * np.sign(grade_DJ[pairs[:, 0]] - grade_DJ[pairs[:, 1]]))
        )
    return Panel(queries, teams)


def grades(path: str) -> tuple[pa.Table, Reals, Reals, list[str]]:
    """A file of grades: its rows, people's grades float64[N], judges' float64[N, J], the team of each. ConfigError."""
    table = pacsv.read_csv(path)
    if table.column_names[:3] != ["qid", "docid", "human"]:
        raise ConfigError("no columns qid, docid, human and a judge each", path, "give DL 2023's all_judges.csv")
    judges = table.column_names[3:]
    grade_NJ = np.stack([table[name].to_numpy().astype(np.float64) for name in judges], axis=1)
    return table, table["human"].to_numpy().astype(np.float64), grade_NJ, [name.split("-")[0] for name in judges]


def ratings(of: Graded, scale_J: Reals, weight_J: Reals) -> Reals:
    """float64[D]: the mode of Bradley-Terry ratings under N(0, 1), by Newton's method.

    A judge's answer has the odds of scale · (θ_i − θ_j), and counts `weight` times.
    """
    first, second = of.pairs.T
    count_EJ = np.where(np.isnan(of.votes), 0.0, weight_J)
    vote_EJ = np.nan_to_num(of.votes)
    theta = np.zeros(len(of.people))
    for _ in range(STEPS):
        p_EJ = expit((theta[first] - theta[second])[:, None] * scale_J)
        slope_E = (count_EJ * scale_J * (vote_EJ - p_EJ)).sum(axis=1)
        curve_E = (count_EJ * scale_J**2 * p_EJ * (1.0 - p_EJ)).sum(axis=1)
        slope = -theta
        np.add.at(slope, first, slope_E)
        np.add.at(slope, second, -slope_E)
        hessian = np.eye(len(theta))
        for i, j, sign in ((first, first, 1), (second, second, 1), (first, second, -1), (second, first, -1)):
            np.add.at(hessian, (i, j), sign * curve_E)
        step = np.linalg.solve(hessian, slope)
        theta += step
        if np.abs(step).max() < CLOSE:
            break
    return theta


def discrimination(gap: Reals, vote: Reals) -> float:
    """The slope of a logistic regression of votes on gaps, without intercept: its maximum of the likelihood."""
    slope = 1.0
    for _ in range(STEPS):
        p = expit(slope * gap)
        information = float((gap**2 * p * (1.0 - p)).sum())
        if information == 0.0:
            return LEAST
        step = float((gap * (vote - p)).sum()) / information
        slope = max(slope + step, LEAST)
        if abs(step) < CLOSE:
            break
    return slope


def _scaled(strength_J: Reals) -> Reals:
    """Strengths whose geometric mean is 1: the ratings' own spread is the scale of all."""
    return strength_J / np.exp(np.log(np.maximum(strength_J, LEAST)).mean())


def _log_odds(share_J: Reals) -> Reals:
    odds = np.log(share_J) - np.log1p(-share_J)
    return np.maximum(odds, LEAST) / np.maximum(odds, LEAST).mean()


def equal(of: Panel) -> tuple[Reals, Reals]:
    """Scale and weight 1."""
    return np.ones(len(of.teams)), np.ones(len(of.teams))


def agreement(of: Panel) -> tuple[Reals, Reals]:
    """Weights by agreement with the mean vote of other teams."""
    agreed, asked = np.zeros(len(of.teams)), np.zeros(len(of.teams))
    for one in of.queries:
        for j, team in enumerate(of.teams):
            others = np.array([other != team for other in of.teams])
            heard = one.votes[:, others]
            mean = np.nanmean(np.where(np.isnan(heard).all(axis=1, keepdims=True), 0.5, heard), axis=1)
            both = ~np.isnan(one.votes[:, j]) & (one.votes[:, j] != 0.5) & (mean != 0.5)
            agreed[j] += ((one.votes[both, j] > 0.5) == (mean[both] > 0.5)).sum()
            asked[j] += both.sum()
    return np.ones(len(of.teams)), _log_odds((agreed + 1.0) / (asked + 2.0))


def joint(of: Panel) -> tuple[Reals, Reals]:
    """Discriminations by the maximum of the joint likelihood, ratings and discriminations in turn."""
    every, scale = equal(of)
    for _ in range(ROUNDS):
        thetas = [ratings(one, scale, every) for one in of.queries]
        found = _scaled(np.array([_slope_of(of, thetas, j, ties=True) for j in range(len(scale))]))
        if np.abs(found - scale).max() < 1e-4:
            break
        scale = found
    return scale, every


def others(of: Panel) -> tuple[Reals, Reals]:
    """Discriminations against the ratings of other teams' judges, ties left out."""
    every, scale = equal(of)
    rest = [of.without(team) for team in dict.fromkeys(of.teams)]
    for _ in range(ROUNDS):
        found = scale.copy()
        for panel, kept in rest:
            thetas = [ratings(one, scale[kept], every[kept]) for one in panel.queries]
            for j in np.flatnonzero(~kept).tolist():
                found[j] = _slope_of(of, thetas, j, ties=False)
        found = _scaled(found)
        if np.abs(found - scale).max() < 1e-3:
            break
        scale = found
    return scale, every


def people(of: Panel) -> tuple[Reals, Reals]:
    """Weights by agreement with people: what no run knows."""
    return np.ones(len(of.teams)), _log_odds(accuracy(of))


def _slope_of(of: Panel, thetas: Sequence[Reals], j: int, ties: bool) -> float:
    gaps, votes = [], []
    for one, theta in zip(of.queries, thetas, strict=True):
        read_E = ~np.isnan(one.votes[:, j]) & (ties | (one.votes[:, j] != 0.5))
        gaps.append((theta[one.pairs[:, 0]] - theta[one.pairs[:, 1]])[read_E])
        votes.append(one.votes[read_E, j])
    return discrimination(np.concatenate(gaps), np.concatenate(votes))


def accuracy(of: Panel) -> Reals:
    """float64[J]: the share of pairs that a judge puts right, where neither it nor people tie."""
    side_E = np.concatenate([one.sides for one in of.queries])
    vote_EJ = np.concatenate([one.votes for one in of.queries])
    told_EJ = ~np.isnan(vote_EJ) & (vote_EJ != 0.5) & (side_E != 0)[:, None]
    right_EJ = told_EJ & ((vote_EJ > 0.5) == (side_E > 0)[:, None])
    return right_EJ.sum(axis=0) / told_EJ.sum(axis=0)


RULES: dict[str, Callable[[Panel], tuple[Reals, Reals]]] = {
    "agreement": agreement, "joint": joint, "others": others, "people": people,
}  # fmt: skip


def measured(of: Graded, theta: Reals) -> tuple[float, ...]:
    """By MEASURES: what people's grades say of ratings."""
    unlike = of.people[:, None] > of.people[None, :]
    ahead = theta[:, None] - theta[None, :]
    right = float(np.where(ahead > 0, 1.0, np.where(ahead < 0, 0.0, 0.5))[unlike].mean())
    discount = 1.0 / np.log2(np.arange(2, 12))
    order = np.argsort(-theta, kind="stable")[:10]
    gain, best = (2.0**one - 1.0 for one in (of.people[order], np.sort(of.people)[::-1][:10]))
    ndcg = float((gain * discount[: len(gain)]).sum() / max((best * discount[: len(best)]).sum(), CLOSE))
    tau: Any = kendalltau(theta, of.people)  # a result type of its own that scipy leaves untyped
    return right, float(tau.statistic), ndcg


def values_of(of: Panel, scale: Reals, weight: Reals) -> Reals:
    """float64[measures, queries]."""
    return np.array([measured(one, ratings(one, scale, weight)) for one in of.queries]).T


def drawn(of: Panel, size: int, number: int) -> Panel:
    """A panel of so many judges, of two teams at least."""
    random = rng("judge-strengths", "panel", size, number)
    while True:
        chosen: list[int] = np.sort(random.choice(len(of.teams), size, replace=False)).tolist()
        teams = [of.teams[j] for j in chosen]
        if len(set(teams)) > 1:
            return Panel([Graded(one.people, one.pairs, one.votes[:, chosen]) for one in of.queries], teams)


def compared(name: str, panels: Sequence[Panel]) -> tuple[dict[str, float], list[Contrast]]:
    """Mean correlations of strengths with accuracy, and each rule less `equal` by every measure."""
    base = np.mean([values_of(one, *equal(one)) for one in panels], axis=0)
    correlations: dict[str, float] = {}
    found: list[Contrast] = []
    for rule, strengths in RULES.items():
        each = [strengths(one) for one in panels]
        value = np.mean([values_of(one, *strength) for one, strength in zip(panels, each, strict=True)], axis=0)
        told = [scale * weight for scale, weight in each]
        correlations[rule] = float(
            np.mean([np.corrcoef(strength, accuracy(one))[0, 1] for one, strength in zip(panels, told, strict=True)])
        )
        found += [
            contrast(f"{name}: {rule}", f"equal, {measure}", [(value[m] - base[m])[None, :]])
            for m, measure in enumerate(MEASURES)
        ]
    return correlations, found


def main(words: Sequence[str] | None = None) -> None:
    """Fit all panels by all rules, print a table."""
    parser = harness.parser(STUDY)
    parser.add_argument("--labels", type=Path, required=True, help="CSV of grades: qid, docid, human, a judge a column")
    parser.add_argument("--panels", type=int, default=20, help="drawn panels of every size")
    given = parser.parse_args(words)

    def run() -> Results:
        every = read(str(given.labels))
        panels = {f"all {len(every.teams)}": [every]}
        panels |= {str(size): [drawn(every, size, number) for number in range(given.panels)] for size in SIZES}
        found = {name: compared(name, some) for name, some in panels.items()}
        contrasts = iter(family([one for _, each in found.values() for one in each]))
        rows = []
        values = []
        for name, (correlations, _) in found.items():
            for rule in RULES:
                cells = [next(contrasts) for _ in MEASURES]
                rows.append(
                    (name, rule, f"{correlations[rule]:.2f}", *(f"{cell}, {cell.p_holm:.3f}" for cell in cells))
                )
                values.append({"panel": name, "rule": rule, "correlation": correlations[rule]})
                values[-1] |= {m: asdict(cell) for m, cell in zip(MEASURES, cells, strict=True)}
        columns = ("judges", "rule", "correlation", *(f"{measure}, p Holm" for measure in MEASURES))
        return Results([Table("Less equal weights", columns, rows)], values={"differences": values})

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
