"""What do circular triads of preferences tell, which an audit shows as a judge's cycles?

    python -m jobs.studies.cycles --gpt FOLDER --passages FOLDER [--queries 200] [--documents 100]

Three documents of which every two were compared are a triad, circular where each beat one and lost to one. Among all
pairs of n documents the wins alone say how many triads are circular, n(n-1)(2n-1)/12 - Σ wins²/2 (Kendall and Babington
Smith 1940), and ratings fit the wins; so a fit may foretell the share whatever the judge. Tried in simulation: a judge
sees gaps of N(0, sd²) with noise of sd 1, of 8 opponents a document. Intransitive: every document has an angle too,
and s · sin of two documents' angles apart is added to their gap, which is a circle of preferences without end;
`pair by pair`: a part of every pair's noise is the same for all judges. Leaning: b is added for the document that is
shown first, which is drawn by hash, or is always the first of the list. On real data: GPT-4o's preferences on TREC DL
2019 (--gpt, dl2019_judgments.csv; --passages has people's grades, in BEIR layout).
The fit of one judge's answers (Thurstone, the rate stage's functions) foretells circles: ratings are drawn from its
posterior, answers by them, over the same pairs. Beside it stand what three such judges show: the dispersion φ of their
fit, 1 where judges err each for itself, and of triads that two of them have circular the share in which they go round
in the same direction, one half under any Bradley-Terry model.
Claims: (1) where preferences follow ratings, the fit foretells the share. It fails where the excess, observed less
foretold, is beyond one point. (2) Intransitive judges show in it. It holds where the excess is above one point, and
fails where it is not. (3) GPT-4o goes round more often than noise explains: the same. (4) Queries of more circles
have worse ratings: it holds where Spearman's correlation of the share with τ-b of ratings and people's grades is below
0 by its interval, and fails where that does not reach below -.2.

To read: intervals are 95 % over queries. `to tell` are the triads that a test at 5 % needs to see, with power .8, this
excess, `to tell so` that the same direction is not one half; `never` where that is not told here. φ is of three judges,
on real data of one. A simulated query has some 57 triads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import kendalltau, rankdata

from anmi_ray.comparisons.graph import k_regular
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.identity import rng
from anmi_ray.core.scale import normal_cdf
from anmi_ray.evaluation.replicates import Contrast, contrast, queries_needed
from anmi_ray.rating import Games, shared_numbers
from anmi_ray.rating.bucket import approximate
from anmi_ray.rating.gaussian import Gaussian
from anmi_ray.rating.graph import count_triads
from jobs.studies import harness
from jobs.studies.harness import Results, Table
from jobs.studies.replayed_designs import read
from jobs.studies.simulated_games import Played, bucket, votes

STUDY = harness.study("cycles", "Circular triads", __doc__ or "")
DEGREE, JUDGES = 8, 3
DRAWS = 60  # of answers that a fit foretells
POINT = 0.01  # of the share: what matters
LEAST = -0.2  # a correlation that would matter
_CONFIG = RateConfig(judge_offsets=False)


@dataclass(frozen=True)
class Habit:
    """How judges prefer: sd of ratings, s of circles, the part of noise that judges share, leaning, who is shown first.

    claim: 1 where preferences follow ratings, 2 where they do not, 0: none.
    """

    name: str
    sd: float = 1.0
    circle: float = 0.0
    shared: float = 0.0
    leaning: float = 0.0
    listed: bool = False
    claim: int = 1


HABITS = (
    Habit("transitive, sd .5", 0.5),
    Habit("transitive, sd 1"),
    Habit("transitive, sd 2", 2.0),
    Habit("coins", 0.0),
    Habit("intransitive, s = .5", circle=0.5, claim=2),
    Habit("intransitive, s = 1", circle=1.0, claim=2),
    Habit("intransitive, s = 2", circle=2.0, claim=2),
    Habit("circles alone, s = 4", 0.0, circle=4.0, claim=2),
    Habit("pair by pair, half the noise", shared=0.5, claim=2),
    Habit("leaning 1, shown by hash", leaning=1.0, claim=0),
    Habit("leaning 1, shown as listed", leaning=1.0, listed=True, claim=0),
    Habit("leaning 4, shown as listed", leaning=4.0, listed=True, claim=0),
)


def played(habit: Habit, queries: int, documents: int) -> tuple[list[Played], list[Reals]]:
    """What the first judge said of every query, and what all did, float64[J, P] each."""
    one: list[Played] = []
    every: list[Reals] = []
    for q in range(queries):
        draw = rng("study", "cycles", q)
        pairs = k_regular(documents, DEGREE, draw)
        latent = habit.sd * draw.normal(size=documents)
        angle = draw.uniform(0.0, 2.0 * math.pi, documents)
        first, second = pairs.T
        shown = np.ones(len(pairs)) if habit.listed else np.where(draw.random(len(pairs)) < 0.5, 1.0, -1.0)
        gap = latent[first] - latent[second] + habit.circle * np.sin(angle[first] - angle[second])
        said = votes(gap + habit.leaning * shown, JUDGES, "thurstone", draw, habit.shared)
        one.append(Played(pairs, said[0], np.ones(len(pairs)), latent))
        every.append(said)
    return one, every


def fit(of: Sequence[Played]) -> tuple[Games, Gaussian, float, Reals]:
    """The games, their posterior by the rate stage's functions, the dispersion, and the true ratings."""
    games, latent = bucket(of)
    shared = shared_numbers(games, _CONFIG)
    return games, approximate(games, shared, _CONFIG)[1], shared.dispersion, latent


def circles(games: Games, w: Reals) -> tuple[Ints, Ints]:
    """Triads and circular ones by query, int64[Q] each, where preferences are `w`."""
    return count_triads(games.query_of_game, *games.global_ends(), w)


def foretold(games: Games, found: Gaussian, draws: int = DRAWS) -> Reals:
    """Circular triads of every query in answers that the fit foretells, float64[draws, Q]. Undecided pairs stay so."""
    posterior = found.posterior
    first, second = games.global_ends()
    draw = rng("study", "cycles", "foretold", games.queries, len(games.w))
    latent = np.empty((draws, len(games.doc_ids)))
    for q in range(games.queries):
        docs, at = (slice(start[q], start[q + 1]) for start in (games.doc_start, games.game_start))
        size = int(games.documents[q])
        incidence = np.zeros((int(games.games[q]), size))
        number = np.arange(len(incidence))
        incidence[number, games.first[at]], incidence[number, games.second[at]] = 1.0, -1.0
        precision = (incidence.T * found.weight[at]) @ incidence + np.diag(posterior.prior_precision[docs])
        root = np.linalg.cholesky(precision)
        latent[:, docs] = found.mean[docs] + np.linalg.solve(root.T, draw.normal(size=(size, draws))).T
    won = draw.random((draws, len(games.w))) < normal_cdf(latent[:, first] - latent[:, second])
    decided = games.w != 0.5
    return np.array([circles(games, np.where(decided, one, 0.5))[1] for one in won], np.float64)


def same_direction(games: Games, said: Reals) -> Contrast:
    """Of triads circular to two judges, float64[J, P], the share in which they go round alike, less one half.

    Where both are circular and alike they agree on all three pairs, else they disagree on all three.
    """
    alike, both = np.zeros((2, games.queries))
    for a, b in zip(*np.triu_indices(len(said), 1), strict=True):
        agree = said[a] == said[b]
        same = circles(games, np.where(agree, said[a], 0.5))[1]
        alike += same
        both += same + circles(games, np.where(agree, 0.5, said[a]))[1]
    return contrast("same direction", "one half", [((alike - 0.5 * both) / both.mean())[None, :]])


@dataclass(frozen=True)
class Circling:
    """By query: triads, and the share of circular ones, observed and foretold, float64[Q]; drawn float64[draws, Q]."""

    triads: Reals
    observed: Reals
    drawn: Reals

    @property
    def foretold(self) -> Reals:
        """The mean of the draws."""
        return self.drawn.mean(axis=0)

    def excess(self, name: str) -> Contrast:
        """Observed less foretold."""
        return contrast(name, "foretold", [(self.observed - self.foretold)[None, :]])


def circling(games: Games, found: Gaussian) -> Circling:
    """Of a fit's games; a query without triads has shares of 0."""
    triads, circular = circles(games, games.w)
    whole = np.maximum(triads, 1)
    return Circling(triads.astype(np.float64), circular / whole, foretold(games, found) / whole)


def verdict(one: Contrast, claim: int) -> str:
    """What an excess says of a claim; claim 1 is that it is none, claims 2 and 3 that it is one."""
    if claim == 1:
        within = one.low >= -POINT and one.high <= POINT
        return "holds" if within else "fails" if one.low > POINT or one.high < -POINT else "cannot tell"
    return "" if not claim else "holds" if one.low > POINT else "fails" if one.high <= POINT else "cannot tell"


def habit_row(habit: Habit, queries: int, documents: int) -> tuple[tuple[str, ...], dict[str, Any]]:
    """What one kind of judge shows."""
    one, every = played(habit, queries, documents)
    games, found, _, _ = fit(one)
    many = [replace(of, w=said.mean(axis=0), answers=JUDGES * of.answers) for of, said in zip(one, every, strict=True)]
    dispersion = fit(many)[2]
    shares = circling(games, found)
    less = shares.excess(habit.name)
    said = verdict(less, habit.claim)
    alike = same_direction(games, np.concatenate(every, axis=1))  # pairs come sorted by their first document, as games
    needed = [_to_tell(one, float(shares.triads.mean())) for one in (less, alike)]
    same = f"{0.5 + alike.difference:.2f} [{0.5 + alike.low:.2f}, {0.5 + alike.high:.2f}]"
    means = shares.observed.mean(), shares.foretold.mean()
    claim = f"{habit.claim} {said}" if habit.claim else ""
    row = (habit.name, *(f"{mean:.3f}" for mean in means), _signed(less), needed[0], claim, same, needed[1],
           f"{dispersion:.2f}")  # fmt: skip
    value = {"habit": asdict(habit), "observed": float(means[0]), "foretold": float(means[1]), "excess": asdict(less)}
    value |= {"triads": float(shares.triads.mean()), "verdict": said, "dispersion": dispersion}
    return row, value | {"same direction": asdict(alike)}


def _to_tell(one: Contrast, triads: float) -> str:
    told = one.low > 0.0 or one.high < 0.0
    return f"{queries_needed(one.query_sd, abs(one.difference)) * triads:,.0f}" if told else "never"


def _signed(one: Contrast) -> str:
    return f"{one.difference:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"


@dataclass(frozen=True)
class Correlation:
    """Spearman's over queries, with its bootstrap interval."""

    value: float
    low: float
    high: float


def correlation(x: Reals, y: Reals, rounds: int = 2000) -> Correlation:
    """Of two figures of every query."""
    at = rng("study", "cycles", "bootstrap").integers(0, len(x), (rounds, len(x)))
    drawn = [_rank_correlation(*one) for one in zip(x[at], y[at], strict=True)]
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    return Correlation(_rank_correlation(x, y), float(low), float(high))


def _rank_correlation(x: Reals, y: Reals) -> float:
    return float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])


def real(gpt: str, passages: str) -> tuple[list[Table], dict[str, Any]]:
    """GPT-4o's circles, those foretold, and whether they go with ratings' agreement with people."""
    replayed, _ = read(gpt, passages)
    grades_of = np.split(replayed.truth, np.cumsum([len(docs) for docs in replayed.docs.values()])[:-1])
    one = [
        Played(pairs, replayed.preferred[query], np.ones(len(pairs)), grades)
        for (query, pairs), grades in zip(replayed.pairs.items(), grades_of, strict=True)
    ]
    games, found, dispersion, grades = fit(one)
    shares = circling(games, found)
    less = shares.excess("GPT-4o")
    low, high = np.quantile(shares.drawn, (0.025, 0.975), axis=0)
    outside = (shares.observed > high).sum(), (shares.observed < low).sum()
    means = shares.observed.mean(), shares.foretold.mean()
    row = (f"{games.queries}", f"{shares.triads.mean():,.0f}", *(f"{mean:.3f}" for mean in means), _signed(less),
           f"3 {verdict(less, 3)}", *(str(count) for count in outside), f"{dispersion:.2f}")  # fmt: skip
    columns = ("queries", "triads a query", "circular", "foretold", "excess", "claim",
               "queries above 97.5 %", "below 2.5 %", "φ")  # fmt: skip
    against, values = people(shares, taus(games, found, grades))
    values |= {"excess": asdict(less), "verdict": verdict(less, 3), "triads": shares.triads.tolist()}
    values |= {"observed": shares.observed.tolist(), "foretold": shares.foretold.tolist()}
    return [Table("GPT-4o on TREC DL 2019", columns, [row]), against], values


def taus(games: Games, found: Gaussian, grades: Reals) -> Reals:
    """Kendall's τ-b of every query's ratings and people's grades; NaN where all have one grade."""
    values: list[float] = []
    for start, stop in zip(games.doc_start[:-1], games.doc_start[1:], strict=True):
        tau: Any = kendalltau(found.mean[start:stop], grades[start:stop])
        values.append(float(tau.statistic))
    return np.array(values)


def people(shares: Circling, tau: Reals) -> tuple[Table, dict[str, Any]]:
    """Whether queries of more circles have ratings that agree less with people."""
    graded = ~np.isnan(tau)
    kinds = {"circular": shares.observed, "foretold": shares.foretold, "excess": shares.observed - shares.foretold}
    rows: list[tuple[str, ...]] = []
    values: dict[str, Any] = {"tau": [None if np.isnan(one) else float(one) for one in tau]}
    for name, share in kinds.items():
        one = correlation(share[graded], tau[graded])
        said = "holds" if one.high < 0.0 else "fails" if one.low > LEAST else "cannot tell"
        rows.append((name, f"{one.value:+.2f} [{one.low:+.2f}, {one.high:+.2f}]", f"4 {said}"))
        values[name] = {**asdict(one), "verdict": said}
    title = f"Spearman's correlation with τ-b of ratings and people's grades, {graded.sum()} queries"
    return Table(title, ("share", "correlation", "claim"), rows), values


def main(words: Sequence[str] | None = None) -> None:
    """Simulate, read, print the tables."""
    parser = harness.parser(STUDY)
    parser.add_argument("--gpt", required=True, help="folder with dl2019_judgments.csv")
    parser.add_argument("--passages", required=True, help="folder with the texts and people's grades, in BEIR layout")
    parser.add_argument("--queries", type=int, default=200, help="simulated queries a row")
    parser.add_argument("--documents", type=int, default=100, help="documents a query")
    given = parser.parse_args(words)

    def run() -> Results:
        found = [habit_row(habit, given.queries, given.documents) for habit in HABITS]
        columns = ("judges", "circular", "foretold", "excess", "to tell", "claim", "same direction", "to tell so", "φ")
        tables, values = real(given.gpt, given.passages)
        simulated = Table("Circular triads of a judge, simulated", columns, [row for row, _ in found])
        return Results([simulated, *tables], values={"simulated": [value for _, value in found], "real": values})

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
