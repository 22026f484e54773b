"""Can a judge's leaning towards longer documents be removed, rather than measured?

    python -m jobs.studies.length_bias --data dl2019=FOLDER --data dl2023=FOLDER --labels FILE --gpt FOLDER

`anmi audit` measures it. A fit cannot remove it by itself: with a rating θ for every document, answers with the odds of
θ_i - θ_j + β (l_i - l_j), l the log of a document's length, fix θ + β l and nothing else. So β needs outside knowledge.
`independence` takes it that relevance has nothing to do with length within a query: β is the slope of ratings on l. (A
prior that is the same for all documents makes a fit choose this β.) `people 20`, 50, 200: people's answers about so
many pairs of other queries tell β, by a logistic regression on the gap of the ratings and that of l; `people, all`:
20,000 pairs of their grades of the other queries, a bound. `panel`: β of this judge less the mean of the other teams'
judges, which answers alone identify; what all share stays. Rated is θ less β l.
Ratings are the rate stage's (Thurstone, modes), of an 8-regular graph a query. Real judges: 33 language models' grades
of TREC DL 2023, one judge at a time, and all of them together; GPT-4o's preferences on TREC DL 2019, whose prompt asks
for the simplest of two alike, and whose file names the shorter passage where the two orders disagree. People's grades
measure. Whatever is fitted is fitted on four fifths of the queries and measured on the others. Simulated judges have a
known β; relevance correlates with l by a known γ; people's answers are the true relevance's.
Claim: removal puts more pairs right than leaving it. It is refuted where the difference is not told from 0, or below.

To read: a cell is the difference to the ratings as they are, with its 95 % interval over queries, judges and draws of
people's answers averaged; p is Holm's over the table. `length` is the correlation within a query of l with what
people's grades leave of ratings; removal brings it to 0. β is in probits a unit of ln length, what the rule took away,
its mean and sd over folds, draws and judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anmi_ray.comparisons.graph import k_regular
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import doc_id, rng
from anmi_ray.core.scale import sigmoid
from anmi_ray.corpus.beir import BeirFiles
from anmi_ray.evaluation.replicates import contrast, family
from anmi_ray.rating.shared_parameters import globals_of
from anmi_ray.rating.solver import solve
from jobs.studies import harness
from jobs.studies.harness import Results, Table
from jobs.studies.judge_strengths import Graded, grades, measured
from jobs.studies.replayed_designs import read
from jobs.studies.simulated_games import Played, bucket, play

STUDY = harness.study("length_bias", "Removing a leaning towards length", __doc__ or "")
DEGREE, FOLDS, DRAWS = 8, 5, 5
ASKED = (20, 50, 200)
MEASURES = ("pairs right", "nDCG@10", "length")
WORLDS = ((0.0, 0.0), (0.3, 0.0), (0.6, 0.0), (0.0, 0.3), (0.3, 0.3), (-0.3, 0.3))  # β and γ
RIDGE = 1.0  # prior precision of both coefficients, of predictors with sd 1


@dataclass(frozen=True)
class LengthRated:
    """A query's documents: ratings, log lengths less their mean, people's grades (or the true relevance)."""

    rating: Reals
    length: Reals
    people: Reals

    def without(self, beta: float) -> LengthRated:
        """Ratings less what length is said to add."""
        return LengthRated(self.rating - beta * self.length, self.length, self.people)


def fitted(queries: Sequence[Played]) -> list[Reals]:
    """Every query's ratings, less their mean, as the rate stage fits them."""
    games, _ = bucket(queries)
    mode = solve(globals_of(games, RateConfig(), 1).posterior(games)).latent
    parts = np.split(mode, np.cumsum([len(one.latent) for one in queries])[:-1])
    return [part - part.mean() for part in parts]


def rated(queries: Sequence[Played], lengths: Sequence[Reals]) -> list[LengthRated]:
    """The queries, rated; `latent` is what people say."""
    found = zip(fitted(queries), lengths, queries, strict=True)
    return [LengthRated(rating, length - length.mean(), one.latent) for rating, length, one in found]


def slope(of: Sequence[LengthRated]) -> float:
    """Of ratings on log length, within queries: β where relevance and length are independent."""
    xy = sum(float(one.length @ one.rating) for one in of)
    return xy / sum(float(one.length @ one.length) for one in of)


def unlike(of: Sequence[LengthRated]) -> tuple[Reals, Reals]:
    """Gaps of rating and of log length of all pairs that people grade unlike, float64[P] each; the better first."""
    rating: list[Reals] = []
    length: list[Reals] = []
    for one in of:
        better, worse = np.nonzero(one.people[:, None] > one.people[None, :])
        rating.append(one.rating[better] - one.rating[worse])
        length.append(one.length[better] - one.length[worse])
    return np.concatenate(rating), np.concatenate(length)


def by_people(rating: Reals, length: Reals) -> float:
    """β by the logistic regression that tells which document is the better; 0 where ratings foretell nothing."""
    x = np.stack([rating, length], axis=1)
    sd = np.maximum(np.sqrt((x * x).mean(axis=0)), 1e-9)
    x = x / sd
    w = np.zeros(2)
    for _ in range(30):
        p = sigmoid(x @ w)
        step = np.linalg.solve((x.T * (p * (1.0 - p))) @ x + RIDGE * np.eye(2), x.T @ (1.0 - p) - RIDGE * w)
        w = w + step
        if np.abs(step).max() < 1e-8:
            break
    of_rating, of_length = w / sd
    return float(-of_length / of_rating) if w[0] > 0.1 else 0.0


def error(of: LengthRated) -> float:
    """Correlation of log length with what a line on people's grades leaves of the ratings."""
    people = of.people - of.people.mean()
    rating = of.rating - of.rating.mean()
    left = rating - people * float(people @ rating) / max(float(people @ people), 1e-9)
    return float(left @ of.length / max(np.sqrt(float(left @ left) * float(of.length @ of.length)), 1e-9))


def values(of: Sequence[LengthRated], real: bool) -> Reals:
    """float64[measures, Q]; of simulated queries people's grades are the true relevance, no gains: its order is."""
    none = np.empty((0, 2), np.int64), np.empty((0, 1))
    rows = []
    for one in of:
        grade = one.people if real else np.searchsorted((0.0, 0.75, 1.5), one.people).astype(np.float64)
        right, _, ndcg = measured(Graded(grade, *none), one.rating)
        rows.append((right, ndcg, error(one)))
    return np.array(rows).T


Removed = dict[str, tuple[Reals, list[float]]]  # by rule: measures float64[measures, Q], and the betas taken away


def removed(name: str, of: Sequence[LengthRated], real: bool, others: float | None = None) -> Removed:
    """What every rule gives on queries that it has not been fitted on. others: β of other teams' judges."""
    fold = rng("length-bias", "folds", name.split(":")[0]).permutation(len(of)) % FOLDS
    found: Removed = {"as given": (values(of, real), [0.0])}
    rules = ["independence", *(f"people {count}" for count in ASKED), "people, all"]
    for rule in rules + (["panel"] if others is not None else []):
        draws = DRAWS if rule.removeprefix("people ").isdigit() else 1
        each: list[Reals] = []
        betas: list[float] = []
        for draw in range(draws):
            kept: list[LengthRated] = list(of)
            for f in range(FOLDS):
                train = [one for one, at in zip(of, fold, strict=True) if at != f]
                beta = _beta(rule, train, others, rng("length-bias", "people", name.split(":")[0], draw, f))
                betas.append(beta)
                for at in np.flatnonzero(fold == f).tolist():
                    kept[at] = of[at].without(beta)
            each.append(values(kept, real))
        found[rule] = np.mean(each, axis=0), betas
    return found


def _beta(rule: str, train: Sequence[LengthRated], others: float | None, random: np.random.Generator) -> float:
    if rule == "independence":
        return slope(train)
    if rule == "panel":
        return slope(train) - (others or 0.0)
    rating, length = unlike(train)
    count = 20_000 if rule == "people, all" else int(rule.removeprefix("people "))
    at = random.choice(len(rating), min(count, len(rating)), replace=False)
    return by_people(rating[at], length[at])


def averaged(every: Sequence[Removed]) -> Removed:
    """Several judges' means."""
    return {rule: (np.mean([one[rule][0] for one in every], axis=0), [b for one in every for b in one[rule][1]])
            for rule in every[0]}  # fmt: skip


def by_judge(labels: str, folder: Path) -> tuple[dict[str, Removed], list[tuple[str, ...]]]:
    """The 33 judges, one at a time and all together, and how far length goes with what people and judges say."""
    table, people, grade_NJ, teams = grades(labels)
    texts = {name: f"{title} {text}" for name, title, text in BeirFiles(str(folder)).documents()}
    length = np.log([max(len(texts[name]), 1) for name in table["docid"].to_pylist()])
    query = np.unique(table["qid"].to_pylist(), return_inverse=True)[1]
    places = [np.flatnonzero(query == q) for q in range(query.max() + 1)]
    lengths = [length[at] for at in places]
    judges: list[list[LengthRated]] = []
    votes: list[list[Reals]] = []
    pairs = [k_regular(len(at), DEGREE, rng("length-bias", "pairs", q)).astype(np.int64)
             for q, at in enumerate(places)]  # fmt: skip
    for grade in grade_NJ.T:
        votes.append([0.5 + 0.5 * np.sign(grade[at[e[:, 0]]] - grade[at[e[:, 1]]])
                      for at, e in zip(places, pairs, strict=True)])  # fmt: skip
        judges.append(rated(_played(pairs, votes[-1], [people[at] for at in places]), lengths))
    slopes = np.array([slope(one) for one in judges])
    team = np.array(teams)
    each = [removed(f"2023:{j}", one, True, float(slopes[team != team[j]].mean())) for j, one in enumerate(judges)]
    mean = [np.nanmean(several, axis=0) for several in zip(*votes, strict=True)]
    every = rated(_played(pairs, mean, [people[at] for at in places]), lengths)
    facts = [
        ("DL 2023, people's grades", _of_people(every), ""),
        ("DL 2023, ratings of all judges", _correlations(every), f"{slope(every):+.2f}"),
        ("DL 2023, ratings of one judge", f"{np.mean([_mean_correlation(one) for one in judges]):+.2f}",
         f"{slopes.mean():+.2f}, sd of judges {slopes.std(ddof=1):.2f}"),
    ]  # fmt: skip
    return {"DL 2023, one judge": averaged(each), "DL 2023, all judges": removed("2023", every, True)}, facts


def _played(pairs: Sequence[Ints], votes: Sequence[Reals], people: Sequence[Reals]) -> list[Played]:
    return [Played(e, w, np.ones(len(w)), latent) for e, w, latent in zip(pairs, votes, people, strict=True)]


def _mean_correlation(of: Sequence[LengthRated]) -> float:
    return float(np.nanmean([_correlation(one) for one in of]))


def _correlation(of: LengthRated) -> float:
    """NaN where a judge told no two documents apart."""
    return float(np.corrcoef(of.rating, of.length)[0, 1]) if np.ptp(of.rating) > 1e-9 else float("nan")


def _correlations(of: Sequence[LengthRated]) -> str:
    return harness.interval(contrast("", "", [np.array([[_correlation(one) for one in of]])]), places=2)


def _of_people(of: Sequence[LengthRated]) -> str:
    return _correlations([LengthRated(one.people, one.length, one.people) for one in of])


def by_gpt(gpt: str, folder: str) -> tuple[Removed, list[tuple[str, ...]]]:
    """GPT-4o's preferences, all of a query's pairs, where people give more than one grade."""
    of, _ = read(gpt, folder)
    texts = {doc_id(name): f"{title} {text}" for name, title, text in BeirFiles(folder).documents()}
    row = {key: at for at, key in enumerate(zip(of.candidates["query_id"].to_pylist(),
                                                of.candidates["doc_id"].to_pylist(), strict=True))}  # fmt: skip
    played: list[Played] = []
    lengths: list[Reals] = []
    for query, docs in of.docs.items():
        people = of.truth[[row[query, doc] for doc in docs]]
        if len(np.unique(people)) > 1 and len(docs) > 10:
            said = of.preferred[query]
            played.append(Played(of.pairs[query], said, np.ones(len(said)), people))
            lengths.append(np.log([len(texts[doc]) for doc in docs]))
    every = rated(played, lengths)
    facts = [
        (
            "DL 2019, people's grades",
            _of_people(every),
            "",
        ),
        ("DL 2019, ratings by GPT-4o", _correlations(every), f"{slope(every):+.2f}"),
    ]
    return removed("2019", every, True), facts


def simulated(beta: float, gamma: float, queries: int, documents: int) -> Removed:
    """Judges that add `beta` a unit of log length, whose sd is 1; relevance correlates with it by `gamma`."""
    played: list[Played] = []
    lengths: list[Reals] = []
    for q in range(queries):
        random = rng("length-bias", "simulated", q)
        length, own = random.normal(size=(2, documents))
        truth = gamma * length + np.sqrt(1.0 - gamma**2) * own
        pairs = k_regular(documents, DEGREE, random).astype(np.int64)
        said = play(pairs, truth + beta * length, 1, "thurstone", random)
        played.append(Played(pairs, said.w, said.answers, truth))
        lengths.append(length)
    return removed("simulated", rated(played, lengths), False)


def table_of(title: str, found: dict[str, Removed]) -> tuple[Table, list[dict[str, Any]]]:
    """Levels as given, then differences to them."""
    compared = [
        contrast(f"{name}: {rule}", measure, [(of[rule][0][m] - of["as given"][0][m])[None]])
        for name, of in found.items()
        for rule in list(of)[1:]
        for m, measure in enumerate(MEASURES)
    ]
    cells = iter(family(compared))
    rows: list[tuple[str, ...]] = []
    kept: list[dict[str, Any]] = []
    for name, of in found.items():
        levels = (harness.interval(contrast("", "", [one[None]])) for one in of["as given"][0])
        rows.append((name, "as given", "", *levels))
        for rule in list(of)[1:]:
            each = [next(cells) for _ in MEASURES]
            betas = np.array(of[rule][1])
            rows.append((name, rule, f"{betas.mean():+.2f} (sd {betas.std():.2f})",
                         *(f"{one}, {one.p_holm:.3f}" for one in each)))  # fmt: skip
            kept.append({"of": name, "rule": rule, "beta": float(betas.mean())}
                        | {m: asdict(one) for m, one in zip(MEASURES, each, strict=True)})  # fmt: skip
    return Table(title, ("judges", "rule", "β", *(f"{measure}, p Holm" for measure in MEASURES)), rows), kept


def main(words: Sequence[str] | None = None) -> None:
    """Fit, remove, measure, print the tables."""
    parser = harness.parser(STUDY, data=True)
    parser.add_argument("--labels", required=True, help="all_judges.csv of TREC DL 2023")
    parser.add_argument("--gpt", required=True, help="folder with dl2019_judgments.csv")
    parser.add_argument("--queries", type=int, default=40, help="simulated queries")
    given = parser.parse_args(words)

    def run() -> Results:
        folders = harness.folders(given.data, ("dl2019", "dl2023"))
        if len(folders) < 2:
            raise ConfigError("both tracks' passages are needed", "--data", "give dl2019=FOLDER and dl2023=FOLDER")
        real, facts = by_judge(given.labels, Path(folders["dl2023"]))
        real["DL 2019, GPT-4o"], of_gpt = by_gpt(given.gpt, folders["dl2019"])
        worlds = {f"β {beta:g}, γ {gamma:g}": simulated(beta, gamma, given.queries, 60) for beta, gamma in WORLDS}
        columns = ("of", "correlation with log length", "slope, probits a unit of ln length")
        about = Table("Length within a query", columns, [*facts, *of_gpt])
        tables = [table_of("Real judges, less as given", real), table_of("Simulated judges, less as given", worlds)]
        return Results([about, *(one for one, _ in tables)],
                       values={"real": tables[0][1], "simulated": tables[1][1]})  # fmt: skip

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
