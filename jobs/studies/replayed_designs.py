"""Which of the preferences that GPT-4o gave would have been enough, had an adaptive design chosen them?

    python -m jobs.studies.replayed_designs --gpt FOLDER --passages FOLDER

GPT-4o's preferences on TREC DL 2019 (--gpt, dl2019_judgments.csv) are of some twelve opponents a passage, drawn at
random; a pair that was never asked cannot be asked here either. --passages has the texts and people's grades, in BEIR
layout. A query's candidates are the passages that GPT-4o compared, all of which people call relevant, ranked by BM25:
what is measured is who is told from whom among these. `random` takes so many of the pairs that there are, `top` chooses
among the same by `compare.design: adaptive`'s functions, in five rounds; of both the first pairs are drawn by hash
until every passage has met another, and half of all. People's grades measure and nothing else reads them.

To read: calls are pairs of a mean query. nDCG@10 has people's grades as gains. `ratings` are the rate stage's, `ratings
and ranks` are what the design knows. A level stands with its 95 % interval over queries, draws averaged; of differences
the second interval is over queries and draws, which stand in the place of seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from anmi_ray.comparisons import Known
from anmi_ray.comparisons.adaptive import next_pairs
from anmi_ray.comparisons.compare import rows
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.identity import doc_id, query_id, rng
from anmi_ray.core.records import QREL
from anmi_ray.corpus.beir import BeirFiles
from anmi_ray.evaluation.replicates import contrast, family
from anmi_ray.judging import protocol
from anmi_ray.stages.rounds import known_by
from jobs.studies import harness
from jobs.studies.both_orders import World, candidates
from jobs.studies.designs import believed, scored_by
from jobs.studies.graded_designs import MEASURE, SYSTEMS, Bm25Ranks, run_of, values_of
from jobs.studies.harness import Results, Table
from jobs.studies.real_preferences import preferences_of

STUDY = harness.study("replayed_designs", "Which of GPT-4o's preferences are needed", __doc__ or "")
DESIGNS = ("random", "top")
DEGREES = (1.5, 2.0, 3.0, 4.0, 6.0)
ALL = 100.0  # opponents a passage: more than anyone has
DRAWS = 5
ROUNDS = 5
_CONFIG = RateConfig()


@dataclass(frozen=True)
class Replayed(World):
    """What GPT-4o preferred: of a query's documents (rows of the candidates), pairs and P(first preferred).

    pairs: by query the places of both documents among its own, int64[P, 2], i < j. preferred: float64[P].
    """

    docs: Mapping[bytes, Sequence[bytes]]
    pairs: Mapping[bytes, Ints]
    preferred: Mapping[bytes, Reals]

    def judgments(
        self,
        comparisons: pa.Table,
        leanings: Sequence[float] = (0.0,),
        orders: Literal["both", "one"] = "one",
        shared: float = 1.0,
    ) -> pa.Table:
        """What GPT-4o said, in whatever order: what it leans to is not in its file."""
        asked = protocol.questions(comparisons, self.candidates, orders=orders)
        said = self._said

        def prefer(asked: protocol.Questions, order: protocol.Order) -> protocol.Answers:
            del order
            table = asked.documents.table
            query, doc = (table[name].to_pylist() for name in ("query_id", "doc_id"))
            values = [
                said[query[a], doc[a], doc[b]] if doc[a] < doc[b] else 1.0 - said[query[a], doc[b], doc[a]]
                for a, b in zip(asked.a.tolist(), asked.b.tolist(), strict=True)
            ]
            return protocol.Answers(np.array(values), np.full(len(values), -1), ())

        return protocol.answer(asked, [("gpt-4o", prefer)])

    @cached_property
    def _said(self) -> dict[tuple[bytes, bytes, bytes], float]:
        """P(first preferred) by query and both documents, the smaller id first."""
        return {
            (query, self.docs[query][i], self.docs[query][j]): value
            for query, pairs in self.pairs.items()
            for (i, j), value in zip(pairs.tolist(), self.preferred[query].tolist(), strict=True)
        }


def read(gpt: str, passages: str) -> tuple[Replayed, pa.Table]:
    """GPT-4o's preferences of the passages, and people's grades as qrels."""
    files = BeirFiles(passages)
    ranks = Bm25Ranks({name: f"{title} {text}" for name, title, text in files.documents()})
    grade = {(query, name): value for query, name, value in files.grades("qrels/test.tsv")}
    queries = dict(files.queries())
    said: dict[str, dict[tuple[str, str], float]] = {}
    for query, first, second, value, _ in preferences_of("dl2019", Path(passages), gpt):
        low, high = sorted((first, second), key=doc_id)
        said.setdefault(query, {})[low, high] = value if low == first else 1.0 - value
    rows_of: list[tuple[bytes, bytes, bool, float, int]] = []
    docs: dict[bytes, list[bytes]] = {}
    pairs: dict[bytes, Ints] = {}
    preferred: dict[bytes, Reals] = {}
    for query, values in sorted(said.items()):
        names = sorted({name for pair in values for name in pair}, key=doc_id)
        place = {name: at for at, name in enumerate(names)}
        rank_of = {name: rank for rank, name in enumerate(ranks.of(queries[query], names), 1)}
        key = query_id(query)
        rows_of += [(key, doc_id(name), False, float(grade.get((query, name), 0)), rank_of[name]) for name in names]
        docs[key] = [doc_id(name) for name in names]
        pairs[key] = np.array([[place[low], place[high]] for low, high in values])
        preferred[key] = np.array(list(values.values()))
    table = candidates(rows_of)
    truth = np.array([row[3] for row in rows_of])
    keys = {name: table[name] for name in ("query_id", "doc_id")}
    return Replayed(table, truth, 0, docs, pairs, preferred), QREL.table({**keys, "grade": truth.astype(np.int64)})


def first_pairs(pairs: Ints, documents: int, total: int, draw: np.random.Generator) -> list[int]:
    """Rows of `pairs`: drawn until every document has met another, then half of `total` in all."""
    order = draw.permutation(len(pairs)).tolist()
    met = np.zeros(documents, np.bool_)
    chosen: list[int] = []
    rest: list[int] = []
    for row in order:
        (rest if met[pairs[row]].all() else chosen).append(row)
        met[pairs[row]] = True
    return chosen + rest[: max(0, min(total, len(pairs)) // 2 - len(chosen))]


def table_of(of: Replayed, chosen: Mapping[bytes, list[int]]) -> pa.Table:
    """Comparisons of the chosen rows of every query's pairs."""
    asked, first, second = zip(
        *sorted(
            (query, of.docs[query][i], of.docs[query][j])
            for query, at in chosen.items()
            for i, j in of.pairs[query][at].tolist()
        ),
        strict=True,
    )
    return rows(asked, first, second, "adaptive")


def replay(of: Replayed, design: str, degree: float, number: int) -> pa.Table:
    """The pairs that a design takes of those that there are, in draw `number` of the first ones."""
    draw = {query: rng("replayed", "pairs", number, query) for query in of.pairs}
    total = {query: min(len(pairs), round(degree * len(of.docs[query]) / 2)) for query, pairs in of.pairs.items()}
    chosen = {
        query: first_pairs(pairs, len(of.docs[query]), total[query], draw[query]) for query, pairs in of.pairs.items()
    }
    begun = {query: len(at) for query, at in chosen.items()}
    for round_ in range(1, ROUNDS):
        known: dict[bytes, Known] = {}
        if design == "top":
            pairs = table_of(of, chosen)
            known = known_by(believed(of, pairs, of.judgments(pairs), _CONFIG, ranks=True)[0])
        for query, at in chosen.items():
            more = begun[query] + (total[query] - begun[query]) * round_ // (ROUNDS - 1) - len(at)
            if more <= 0:
                continue
            if design == "random":
                free = np.setdiff1d(np.arange(len(of.pairs[query])), at)
                at += free[draw[query].permutation(len(free))[:more]].tolist()
            else:
                at += _worth_most(of.pairs[query], at, more, known[query])
    return table_of(of, chosen)


def _worth_most(pairs: Ints, at: Sequence[int], more: int, known: Known) -> list[int]:
    """Rows of `pairs`, beside those `at`, that are worth asking next; pairs that are not there count as asked."""
    documents = len(known.doc_ids)
    numbered = pairs @ [documents, 1]
    every = np.stack(np.triu_indices(documents, 1), axis=1)
    free = np.isin(every @ [documents, 1], np.delete(numbered, at))
    found = next_pairs(known.beliefs, every[~free], more, "top", "thurstone")
    row_of = {value: row for row, value in enumerate(numbered.tolist())}
    return [row_of[value] for value in (found @ [documents, 1]).tolist()]


def measured(of: Replayed, qrels: pa.Table, design: str, degree: float, draws: int) -> tuple[Reals, float]:
    """The measure by SYSTEMS, draw and query, float64[3, draws, Q], and the pairs of a mean query."""
    found: list[Reals] = []
    calls = 0
    for number in range(draws):
        pairs = replay(of, design, degree, number)
        calls += pairs.num_rows
        found.append(values_of(run_of(of.candidates, scored_by(of, pairs, of.judgments(pairs), _CONFIG)), qrels))
    return np.stack(found, axis=1), calls / draws / len(of.pairs)


def results(of: Replayed, qrels: pa.Table, draws: int) -> Results:
    """Levels by design and calls, and their differences."""
    found: dict[tuple[str, float], Reals] = {}
    rows_of: list[tuple[str, ...]] = []
    for degree, name in [*((degree, name) for degree in DEGREES for name in DESIGNS), (ALL, "random")]:
        values, calls = measured(of, qrels, name, degree, draws if degree < ALL else 1)
        found[name, degree] = values
        levels = (harness.interval(contrast(name, "", [one])) for one in values[1:])
        rows_of.append(("all" if degree == ALL else name, f"{calls:.0f}", *levels))
    first = found["random", DEGREES[0]][0]
    level = contrast("BM25", "", [first])
    documents = of.candidates.num_rows / len(of.pairs)
    columns = ("pairs", "calls", *(f"{MEASURE}, {name}" for name in SYSTEMS[1:]))
    title = f"{level.queries} queries of {documents:.0f} passages, {draws} draws; BM25 alone {harness.interval(level)}"
    tables = [Table(title, columns, rows_of)]
    differences: dict[str, Any] = {}
    for at, system in enumerate(SYSTEMS[1:], 1):
        rows = [contrast(f"top {one:g}", f"random {one:g}", [found["top", one][at] - found["random", one][at]])
                for one in DEGREES]  # fmt: skip
        rows += [contrast(f"top {one:g}", "all", [found["top", one][at] - found["random", ALL][at]]) for one in DEGREES]
        rows += [contrast(f"top {one:g}", "BM25", [found["top", one][at] - first]) for one in DEGREES]
        compared = family(rows)
        tables.append(harness.contrasts_table(f"{system.capitalize()}, design and opponents a passage", compared))
        differences[system] = [asdict(one) for one in compared]
    levels_of = {f"{name} {degree:g}": values.mean(axis=(1, 2)).tolist() for (name, degree), values in found.items()}
    return Results(tables, (), {"levels": levels_of, "differences": differences})


def main(words: Sequence[str] | None = None) -> None:
    """Replay, print the tables."""
    parser = harness.parser(STUDY)
    parser.add_argument("--gpt", required=True, help="folder with dl2019_judgments.csv")
    parser.add_argument("--passages", required=True, help="folder with the texts and people's grades, in BEIR layout")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of the first pairs")
    given = parser.parse_args(words)
    harness.carry_out(STUDY, given, lambda: results(*read(given.gpt, given.passages), given.draws))


if __name__ == "__main__":
    main()
