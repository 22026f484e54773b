"""From how few calls a query on is what a judge says better than the first stage's order?

    python -m jobs.studies.few_calls --gpt FOLDER --passages FOLDER --data scifact=FOLDER [--draws 3]

With few calls not every candidate can meet others. `head` asks about the first stage's first documents only, by
`compare.design: adaptive` with the objective `top`, and leaves the others behind them in the first stage's order: what
a run does with `retrieve.candidates: M, compare.degree: 4` and 2 M calls. With so many calls that all are met, it is
the design over all.
Replayed: GPT-4o's preferences on TREC DL 2019, as in the study of which of them are needed. A pair that was never asked
cannot be asked here, so the head is the fewest first passages that have twice as many pairs as are asked.
Simulated: the hybrid's 100 documents of SciFact's test queries, and judges with GPT-4o's errors in two readings.
`anew`: every answer errs for itself, as often as GPT-4o's answers do about passages that are one grade apart, or two;
of two documents that are not relevant either wins as often. `opinion`: the judge sees b probits a grade and has an
opinion of its own of every document, N(0, s²), which stays; an answer adds noise of sd 1. b and s² are those of the
ratings that all of GPT-4o's preferences give, regressed on people's grades within queries; a relevant document is two
grades above all others, or three. Nothing of who is relevant is known to a design.
Claim: at every number of calls from 50 on, ratings and ranks together rank better than the first stage. It is refuted
where a difference's interval lies below 0, and not shown where it holds it.

To read: calls are those of a mean query. nDCG@10 of ratings and ranks together, which is what the design knows. Beside
the level stands the difference from the first stage, with its 95 % interval over queries, draws averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.identity import rng
from anmi_ray.core.scale import normal_cdf, normal_quantile
from anmi_ray.evaluation.replicates import Contrast, contrast, family
from jobs.studies import conditions, harness
from jobs.studies.both_orders import World, candidates
from jobs.studies.collected import Part
from jobs.studies.conditions import LabelFree, stages_of
from jobs.studies.designs import Design, asked, believed, scored_by
from jobs.studies.graded_designs import MEASURE, run_of, values_of
from jobs.studies.harness import Results, Table
from jobs.studies.replayed_designs import ALL, Replayed, read, replay
from jobs.studies.student_training import Material

STUDY = harness.study("few_calls", "From how few calls on", __doc__ or "")
CALLS = (50, 75, 100, 200)
GRADES = (1, 2)  # gaps of people's grades in TREC DL 2019's relevant passages
DRAWS = 2
_DEGREE = 4  # opponents a document of the head
_DEPTH = 100
_JUDGE = RateConfig()
Scored = Iterable[tuple[bytes, Ints, tuple[Reals, Reals, Reals]]]


@dataclass(frozen=True)
class OneJudge(World):
    """A world with one judge, who leans nowhere."""

    def judgments(
        self,
        comparisons: pa.Table,
        leanings: Sequence[float] = (0.0,),
        orders: Literal["both", "one"] = "one",
        shared: float = 1.0,
    ) -> pa.Table:
        """What the judge says; leanings are not those of `designs`."""
        del leanings
        return super().judgments(comparisons, (0.0,), orders, shared)


@dataclass(frozen=True)
class Errors:
    """A judge's errors: what it sees of a grade, in probits, and the variance of its own opinion of a document.

    right: by gap of people's grades the share of its answers, ties apart, that agree with them.
    """

    grade: float
    own: float
    right: Mapping[int, float]

    def foretold(self, gap: int) -> float:
        """The share of answers that would agree with people's grades of this gap."""
        return float(normal_cdf(np.array(self.grade * gap / np.sqrt(1.0 + 2.0 * self.own))))


@dataclass(frozen=True)
class Judge:
    """A simulated judge: how far above the others it sees what is relevant, and the sd of its own opinion, probits."""

    name: str
    relevant: float
    own: float


def judges_of(errors: Errors) -> list[Judge]:
    """Simulated judges with these errors, in both readings."""
    anew = [
        Judge(f"anew, {right:.0%} right", float(normal_quantile(np.array(right))), 0.0)
        for right in errors.right.values()
    ]
    opinion = [Judge(f"opinion, {gap} grades apart", gap * errors.grade, float(np.sqrt(errors.own))) for gap in (2, 3)]
    return anew + opinion


def errors_of(of: Replayed) -> Errors:
    """GPT-4o's, by all that it said."""
    pairs = replay(of, "random", ALL, 0)
    found, _ = believed(of, pairs, of.judgments(pairs), _JUDGE, ranks=False)
    seen, grade, error = [], [], []
    for one in found:
        graded = of.truth[of.rows_of(one.query_id, one.doc_ids)]
        seen.append(one.mean - one.mean.mean())
        grade.append(graded - graded.mean())
        error.append(one.covariance.diagonal())
    x, y = np.concatenate(grade), np.concatenate(seen)
    slope = float(x @ y / (x @ x))
    own = float(np.mean((y - slope * x) ** 2) + np.mean(np.concatenate(error)))
    return Errors(slope, own, _right(of))


def _right(of: Replayed) -> dict[int, float]:
    """By gap of grades, how often the passage of the better grade was preferred, of answers that are no ties."""
    graded: dict[bytes, list[float]] = {}
    for query, value in zip(of.candidates["query_id"].to_pylist(), of.truth.tolist(), strict=True):
        graded.setdefault(query, []).append(value)
    gap, first_won = [], []
    for query, pairs in of.pairs.items():
        value = np.array(graded[query])
        gap.append(value[pairs[:, 0]] - value[pairs[:, 1]])
        first_won.append(of.preferred[query])
    gap_P, won_P = np.concatenate(gap), np.concatenate(first_won)
    told = (gap_P != 0) & (won_P != 0.5)
    right = (won_P > 0.5) == (gap_P > 0)
    return {size: float(right[told & (abs(gap_P) == size)].mean()) for size in GRADES}


def head(of: Replayed, calls: int) -> Replayed:
    """The first passages of every query, as few as have twice as many pairs as `calls`, or all."""
    rank = of.candidates["rank"].to_numpy()
    row_of = {pair: row for row, pair in enumerate(_keys(of.candidates))}
    docs: dict[bytes, Sequence[bytes]] = {}
    pairs: dict[bytes, Ints] = {}
    preferred: dict[bytes, Reals] = {}
    kept: list[int] = []
    for query, names in of.docs.items():
        rows = np.array([row_of[query, name] for name in names])
        reached = rank[rows][of.pairs[query]].max(axis=1)  # the later rank of every pair
        taken = reached <= np.sort(reached)[min(2 * calls, len(reached)) - 1]
        inside = np.unique(of.pairs[query][taken])
        docs[query] = [names[at] for at in inside.tolist()]
        pairs[query] = np.searchsorted(inside, of.pairs[query][taken])
        preferred[query] = of.preferred[query][taken]
        kept += rows[inside].tolist()
    kept.sort()
    return Replayed(of.candidates.take(pa.array(kept)), of.truth[kept], of.seed, docs, pairs, preferred)


def _keys(table: pa.Table) -> Iterator[tuple[bytes, bytes]]:
    return zip(table["query_id"].to_pylist(), table["doc_id"].to_pylist(), strict=True)


def completed(of: World, asked_of: World, found: Scored) -> Iterator[tuple[bytes, Ints, tuple[Reals, Reals, Reals]]]:
    """The scores of all candidates of `of`: those of `asked_of` come first, the others as the first stage has them."""
    rank = of.candidates["rank"].to_numpy().astype(np.float64)
    row_of = {pair: row for row, pair in enumerate(_keys(of.candidates))}
    rows_of: dict[bytes, list[int]] = {}
    for row, query in enumerate(of.candidates["query_id"].to_pylist()):
        rows_of.setdefault(query, []).append(row)
    within = list(_keys(asked_of.candidates))
    for query, at, scores in found:
        every = np.array(rows_of[query])
        rated = np.searchsorted(every, [row_of[within[row]] for row in at.tolist()])
        full = []
        for score in scores[1:]:
            values = -1e6 - rank[every]
            values[rated] = score
            full.append(values)
        yield query, every, (-rank[every], full[0], full[1])


def replayed(of: Replayed, qrels: pa.Table, calls: int, draws: int) -> tuple[Reals, float, float]:
    """The measure by first stage and by all that is known, float64[2, draws, Q]; calls and passages of a mean query."""
    some = head(of, calls)
    queries = len(some.docs)
    documents = some.candidates.num_rows / queries
    spent = 0
    found: list[Reals] = []
    for number in range(draws):
        pairs = replay(some, "top", 2.0 * calls / documents, number)
        spent += pairs.num_rows
        each = completed(of, some, scored_by(some, pairs, some.judgments(pairs), _JUDGE))
        found.append(values_of(run_of(of.candidates, each), qrels)[[0, 2]])
    return np.stack(found, axis=1), spent / draws / queries, documents


def simulated(of: World, qrels: pa.Table, calls: int, judge: Judge, draws: int) -> Reals:
    """The same of a simulated judge."""
    documents = min(_DEPTH, 2 * calls // _DEGREE)
    inside = pc.less_equal(of.candidates["rank"], documents)
    found: list[Reals] = []
    for number in range(draws):
        opinion = rng("few-calls", "opinion", number).normal(size=len(of.truth))
        latent = judge.relevant * of.truth + judge.own * opinion
        some = OneJudge(of.candidates.filter(inside), latent[inside.to_numpy()], number)
        pairs, said = asked(some, Design("top", 2 * calls // documents), _JUDGE)
        each = completed(of, some, scored_by(some, pairs, said, _JUDGE))
        found.append(values_of(run_of(of.candidates, each), qrels)[[0, 2]])
    return np.stack(found, axis=1)


def hybrid(of: LabelFree, part: Part) -> tuple[World, pa.Table]:
    """The hybrid's first documents of a collection's test queries, the truth 1 where relevant, and the labels."""
    harness.make([part.experiment], "retrieve")
    material = Material(of.root, stages_of(part.experiment))
    runs = material.system("hybrid", "test")
    runs = runs.filter(pc.less_equal(runs["rank"], _DEPTH))
    qrels = material.of_split(material.qrels, "test")
    relevant = {pair for pair, grade in zip(_keys(qrels), qrels["grade"].to_pylist(), strict=True) if grade > 0}
    rows = sorted(
        (query, doc, False, float((query, doc) in relevant), rank)
        for (query, doc), rank in zip(_keys(runs), runs["rank"].to_pylist(), strict=True)
    )
    return World(candidates(rows), np.array([row[3] for row in rows]), 0), qrels


def _add(
    rows: list[tuple[str, ...]], compared: list[Contrast], name: str, values: Reals, calls: float, documents: float
) -> None:
    """A row of levels and the difference from the first stage."""
    first, level = (harness.interval(contrast(name, "", [one])) for one in values)
    rows.append((name, f"{calls:.0f}", f"{documents:.0f}", first, level))
    compared.append(contrast(f"{name}, {calls:.0f} calls", "first stage", [values[1] - values[0]]))


def results(of: Replayed, qrels: pa.Table, other: tuple[World, pa.Table], draws: int) -> Results:
    """Levels and differences by calls, replayed and simulated."""
    errors = errors_of(of)
    rows: list[tuple[str, ...]] = []
    compared: list[Contrast] = []
    for calls in CALLS:
        _add(rows, compared, "GPT-4o, replayed", *replayed(of, qrels, calls, draws))
    for judge in judges_of(errors):
        for calls in CALLS:
            values = simulated(*other, calls, judge, draws)
            _add(rows, compared, f"SciFact, {judge.name}", values, calls, min(_DEPTH, 2 * calls // _DEGREE))
    corrected = family(compared)
    columns = ("judge", "calls", "documents of the head", f"{MEASURE}, first stage", f"{MEASURE}, ratings and ranks")
    known = [(str(gap), f"{errors.right[gap]:.3f}", f"{errors.foretold(gap):.3f}") for gap in GRADES]
    shown = Table(
        f"GPT-4o's errors: {errors.grade:.2f} probits a grade, an opinion of its own of sd {np.sqrt(errors.own):.2f}",
        ("gap of people's grades", "answers right", "foretold by these two"),
        known,
    )
    tables = [shown, Table(f"Levels, {draws} draws", columns, rows)]
    tables.append(harness.contrasts_table("Differences from the first stage", corrected))
    return Results(tables, (), {"errors": asdict(errors), "differences": [asdict(one) for one in corrected]})


def main(words: Sequence[str] | None = None) -> None:
    """Replay and simulate, print the tables."""
    parser = conditions.arguments(STUDY, seeds=1)
    parser.add_argument("--gpt", required=True, help="folder with dl2019_judgments.csv")
    parser.add_argument("--passages", required=True, help="folder with the texts and people's grades, in BEIR layout")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of first pairs, opinions and answers")
    parser.set_defaults(collections="scifact")
    given = parser.parse_args(words)

    def work() -> Results:
        of = conditions.prepare(harness.read_settings(conditions.Plan, given.config), given)
        return results(*read(given.gpt, given.passages), hybrid(of, of.parts[0]), given.draws)

    harness.carry_out(STUDY, given, work)


if __name__ == "__main__":
    main()
