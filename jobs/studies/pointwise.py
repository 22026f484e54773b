"""Pairwise or pointwise judgments, at equal cost?

    python -m jobs.studies.pointwise --gpt FOLDER --passages FOLDER --grades FILE --grades FILE --labels FILE

The report says (6.1) that pairwise comparisons are more reliable than absolute judgments. A call that compares reads
two documents, so costs are counted in readings of a document: a preference costs two, a grade one.
Real judges: GPT-4o preferred one of two passages of TREC DL 2019 (--gpt), and GPT-4o graded the same passages from 0 to
3 (the first --grades, a file of qrels, UMBRELA's prompt; the second is GPT-4's). Of the preferences those of round 0
are taken, whose pairs are drawn at random among passages that people grade 1 or more. A pair was asked in both orders,
and where the answers differ its file names the shorter passage; that is right as often as a coin, so one answer in one
order is as often right as what the file says. The claim is refuted where preferences put no more of these pairs right
than the grades of the same two passages do, equal grades one half. --labels has 33 language models' grades of TREC DL
2023, other queries and passages: how noisy one grade is, how much of that the models share, how their level moves with
the query. In the third table `top` chooses among GPT-4o's preferences of all rounds as the adaptive design does; with
`grades first` the passages are ranked by GPT-4o's grades for the prior, else by BM25.
Simulated judges have noises like those: see pointwise_worlds.py. 100 documents a query; the number of readings is the
same in a row. `grades` are means of as many judges' grades as the readings allow, `seen` the same without cutting
into four grades (P(relevant)); `uniform` and `top` are the project's designs with the Thurstone fit; `grades, top` is
one grade each, as the prior's order, then `top` among all documents; `grades, short list` then compares the best 30 by
grade (60 where these have not the pairs) at random.

To read: a cell is a mean over queries with its 95 % interval. Noise is in standard deviations of relevance among the
passages that are compared. `ratio` is the noise of an answer about a pair over that of two grades compared: below 1
comparing is the finer measurement. It is inferred as if people's grades were relevance itself, cut in grades.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from anmi_ray.core.arrays import Reals
from anmi_ray.corpus.beir import BeirFiles
from anmi_ray.evaluation.replicates import contrast
from jobs.studies import harness
from jobs.studies.harness import Results, Table
from jobs.studies.pointwise_judges import of_2019, of_2023, preferred, ratios, read_qrels, replays, shares
from jobs.studies.pointwise_worlds import ReadingNoise, by_pairs, judged, measured, mixed, short_list

STUDY = harness.study("pointwise", "Pairwise or pointwise", __doc__ or "")
DOCUMENTS = 100
BUDGETS = (100, 200, 400, 800, 1600)
RATIOS = (0.4, 0.6, 0.8, 1.0)
SHARES = (0.45, 0.28, 0.18, 0.09)  # of grades 0 to 3: people's of TREC DL 2023
MEASURES = ("nDCG@10", "P@10", "pairs right")
POINTWISE = ("grades", "seen")
PAIRWISE = ("uniform", "top", "grades, top", "grades, short list")
Found = dict[tuple[str, int], Reals]  # float64[measures, Q] by system and readings a query


def by_grades(noise: ReadingNoise, queries: int) -> Found:
    """What grades alone find: they do not depend on the ratio."""
    of = judged(queries, DOCUMENTS, noise)
    found: Found = {}
    for name, as_given in zip(POINTWISE, (SHARES, ()), strict=True):
        every = of.grades(BUDGETS[-1] // DOCUMENTS, as_given)
        found |= {(name, budget): measured(of, every[: budget // DOCUMENTS].mean(axis=0)) for budget in BUDGETS}
    return found


def by_comparing(noise: ReadingNoise, queries: int) -> Found:
    """What designs of pairs find, with one grade each before them or without."""
    of = judged(queries, DOCUMENTS, noise)
    grade = of.grades(1, SHARES)[0]
    found: Found = {}
    for budget in BUDGETS[1:]:
        degree = budget // DOCUMENTS
        found["uniform", budget] = measured(of, by_pairs(of, "uniform", degree))
        if degree > 2:  # a cycle is all that `top` asks before it chooses
            found["top", budget] = measured(of, by_pairs(of, "top", degree))
            if degree < 16:
                found["grades, top", budget] = measured(of, mixed(of, grade, degree - 1))
        found["grades, short list", budget] = measured(of, short_list(of, grade, (budget - DOCUMENTS) // 2))
    return found


def simulated(noise: ReadingNoise, queries: int) -> tuple[list[Table], list[dict[str, object]]]:
    """Levels, and differences to the grades of as many readings, by ratio."""
    base = by_grades(noise, queries)
    worlds = {str(ratio): replace(noise, ratio=ratio) for ratio in RATIOS}
    worlds["0.6, judges' own errors only"] = replace(noise, ratio=0.6, helps_all=False)
    found = {name: by_comparing(one, queries) for name, one in worlds.items()}
    tables: list[Table] = []
    values: list[dict[str, object]] = []
    for m, measure in enumerate(MEASURES):
        rows = [("", name, *(f"{base[name, budget][m].mean():.3f}" for budget in BUDGETS)) for name in POINTWISE]
        for world, systems in found.items():
            for name in PAIRWISE:
                cells = [""]
                for budget in BUDGETS[1:]:
                    if (name, budget) not in systems:
                        cells.append("")
                        continue
                    one = systems[name, budget][m]
                    less = contrast(name, "grades", [(one - base["grades", budget][m])[None]])
                    cells.append(f"{one.mean():.3f} ({less})")
                    values.append({"measure": measure, "ratio": world, "system": name, "readings": budget,
                                   "level": float(one.mean()), "difference": less.difference,
                                   "low": less.low, "high": less.high})  # fmt: skip
                rows.append((world, name, *cells))
        tables.append(Table(f"{measure}, simulated, and less `grades`, {queries} queries",
                            ("ratio", "judgments", *map(str, BUDGETS)), rows))  # fmt: skip
    return tables, values


def verdicts(values: Sequence[dict[str, object]]) -> Table:
    """Up to which ratio each is told to be better than grades, and from which it is told to be worse."""
    rows = []
    for measure in MEASURES:
        for name in PAIRWISE:
            cells = []
            for budget in BUDGETS[1:]:
                where = (measure, name, budget)
                here = [
                    one
                    for one in values
                    if (one["measure"], one["system"], one["readings"]) == where
                    and one["ratio"] in [str(ratio) for ratio in RATIOS]
                ]
                better = [str(one["ratio"]) for one in here if float(str(one["low"])) > 0.0]
                worse = [str(one["ratio"]) for one in here if float(str(one["high"])) < 0.0]
                said = [f"better to {better[-1]}"] if better else []
                said += [f"worse from {worse[0]}"] if worse else []
                cells.append(", ".join(said) or ("not told" if here else ""))
            rows.append((measure, name, *cells))
    columns = ("measure", "judgments", *map(str, BUDGETS[1:]))
    return Table("At which ratio comparing is told from `grades`, by readings", columns, rows)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, simulate, print the tables."""
    parser = harness.parser(STUDY)
    parser.add_argument("--gpt", type=Path, required=True, help="folder with dl2019_judgments.csv")
    parser.add_argument("--passages", type=Path, required=True, help="folder of DL 2019 with people's grades, BEIR")
    parser.add_argument("--grades", type=Path, required=True, action="append", help="grades of DL 2019, as qrels")
    parser.add_argument("--labels", required=True, help="all_judges.csv of TREC DL 2023")
    parser.add_argument("--queries", type=int, default=30, help="simulated queries")
    given = parser.parse_args(words)

    def run() -> Results:
        people = {(query, doc): float(grade)
                  for query, doc, grade in BeirFiles(str(given.passages)).grades("qrels/test.tsv")}  # fmt: skip
        named = {f"grades of {path.stem}": read_qrels(path) for path in given.grades}
        pairs = preferred(given.gpt, people, named)
        tables = of_2019(pairs, list(named))
        relevant = shares(np.array([grade for grade in people.values() if grade >= 1]), 1)
        tables.append(ratios(pairs, relevant, people, named))
        of_grades, noise = of_2023(given.labels)
        tables += [of_grades, replays(str(given.gpt), str(given.passages), named)]
        noise = ReadingNoise(round(noise.sigma, 1), round(noise.alike, 1), 1.0, round(noise.shift, 1))
        of_worlds, values = simulated(noise, given.queries)
        note = f"Simulated judges have σ = {noise.sigma}, a = {noise.alike}, thresholds of sd {noise.shift}."
        return Results([*tables, verdicts(values), *of_worlds], [note], {"simulated": values})

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
