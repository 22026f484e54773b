"""Does the adaptive design need as few calls of real language models as of simulated judges?

    python -m jobs.studies.graded_designs --data dl2023=FOLDER --labels FILE [--panels 10]

FOLDER holds TREC DL 2023's judged passages, FILE the grades that 33 language models and people gave them (columns qid,
docid, human, then a judge a column). All of a query's passages are its candidates, ranked by BM25. A judge prefers the
passage that it grades higher, equal grades are one half, a grade off the scale is no answer. A panel is three judges of
three teams, drawn by hash. `uniform` is the k-regular graph, `top` is `compare.design: adaptive` in five rounds,
carried out by the functions of the stages compare and rate; the worth of ranks is fitted to the answers. Who grades
leans to no position, so one order is asked, and both orders of a pair would say the same twice. People's grades measure
and nothing else reads them.
Claim: at the same calls `top` finds better first ten passages than `uniform`, and with a quarter of them no worse ones.
It is refuted where a difference's interval lies below 0, and not shown where it holds it.

To read: calls are those of a mean query to each judge. nDCG@10 has people's grades as gains. `ratings` are the rate
stage's, `ratings and ranks` are what the design knows. A level stands with its 95 % interval over queries, panels
averaged; of differences the second interval is over queries and panels, which stand in the place of seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from anmi_ray.config.retrieve import Bm25Config
from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import doc_id, query_id, rng
from anmi_ray.core.records import QREL, RUN
from anmi_ray.corpus.beir import BeirFiles
from anmi_ray.evaluation import measures
from anmi_ray.evaluation.replicates import contrast, family
from anmi_ray.judging import protocol
from anmi_ray.retrieval.bm25 import Bm25Index, Counts
from jobs.studies import harness
from jobs.studies.both_orders import World, candidates
from jobs.studies.designs import Design, scored
from jobs.studies.harness import Results, Table
from jobs.studies.judge_strengths import grades

STUDY = harness.study("graded_designs", "Which pairs to ask real judges about", __doc__ or "")
MEASURE = "nDCG@10"
SYSTEMS = ("first stage", "ratings", "ratings and ranks")
DEGREES = (3, 4, 8, 16)
DESIGNS = tuple(Design(name, degree) for degree in DEGREES for name in ("uniform", "top"))
SIZE = 3  # judges of a panel
_SCALE = range(4)


@dataclass(frozen=True)
class Graded(World):
    """A world whose truth is people's grades, and what each of the panel's judges gave: float64[D, J]."""

    grades: Reals

    def judgments(
        self,
        comparisons: pa.Table,
        leanings: Sequence[float],
        orders: Literal["both", "one"] = "one",
        shared: float = 1.0,
    ) -> pa.Table:
        """What the panel prefers. Its judges lean nowhere: `leanings` say how many there are, `shared` nothing."""
        asked = protocol.questions(comparisons, self.candidates, orders=orders)
        at = self.row(asked.documents.table, "doc_id")

        def prefer(grade: Reals, asked: protocol.Questions, order: protocol.Order) -> protocol.Answers:
            del order
            first, second = grade[at[asked.a]], grade[at[asked.b]]
            good = np.isin(first, _SCALE) & np.isin(second, _SCALE)
            said = np.where(good, 0.5 + 0.5 * np.sign(first - second), np.nan)
            return protocol.Answers(said, np.where(good, -1, 0), ("a grade off the scale",))

        judges = enumerate(self.grades.T[: len(leanings)])
        return protocol.answer(asked, [(f"judge{j}", partial(prefer, grade)) for j, grade in judges])


@dataclass(frozen=True)
class Track:
    """A track's passages as candidates with people's grades, float64[D], and every judge's, float64[D, N]."""

    candidates: pa.Table
    people: Reals
    grades: Reals
    teams: Sequence[str]

    @property
    def qrels(self) -> pa.Table:
        """People's grades."""
        keys = {name: self.candidates[name] for name in ("query_id", "doc_id")}
        return QREL.table({**keys, "grade": self.people.astype(np.int64)})

    def panel(self, number: int) -> Graded:
        """The panel of this number: judges of as many teams."""
        draw = rng("graded-designs", "panel", number)
        teams = draw.choice(sorted(set(self.teams)), SIZE, replace=False).tolist()
        judges = [int(draw.choice(np.flatnonzero(np.array(self.teams) == team))) for team in teams]
        return Graded(self.candidates, self.people, number, self.grades[:, judges])


class Bm25Ranks:
    """BM25 over texts by name."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        config = Bm25Config()
        self._index = Bm25Index(Counts.of(list(texts.values()), config), config)
        self._names = list(texts)

    def of(self, query: str, names: Iterable[str]) -> list[str]:
        """`names`, the best first; those that hold no word of the query come last, by name."""
        found = self._index.search([query], len(self._names))[0][0].tolist()
        rank_of = {self._names[document]: rank for rank, document in enumerate(found) if document >= 0}
        return sorted(names, key=lambda name: (rank_of.get(name, len(self._names)), name))


def read(folder: str, labels: str) -> Track:
    """A track, its passages ranked by BM25. Raises ConfigError where the file has not the columns."""
    table, people, judged, teams = grades(labels)
    files = BeirFiles(folder)
    queries = dict(files.queries())
    ranks = Bm25Ranks({name: f"{title} {text}" for name, title, text in files.documents()})
    query_D, doc_D = (table[name].to_pylist() for name in ("qid", "docid"))
    rows: list[tuple[bytes, bytes, bool, float, int]] = []
    order: list[int] = []
    for query in sorted(set(query_D)):
        row_of = {doc_D[row]: row for row in np.flatnonzero(np.array(query_D) == query).tolist()}
        for rank, name in enumerate(ranks.of(queries[query], row_of), 1):
            rows.append((query_id(query), doc_id(name), False, 0.0, rank))
            order.append(row_of[name])
    return Track(candidates(rows), people[order], judged[order], teams)


def measured(of: Track, panels: int, design: Design) -> Reals:
    """The measure of every query's rankings by SYSTEMS, float64[3, panels, Q]."""
    return np.stack([values_of(run, of.qrels) for run in _runs(of, panels, design)], axis=1)


def _runs(of: Track, panels: int, design: Design) -> Iterator[pa.Table]:
    for number in range(panels):
        yield run_of(of.candidates, scored(of.panel(number), design))


def run_of(candidates: pa.Table, found: Iterable[tuple[bytes, Ints, Sequence[Reals]]]) -> pa.Table:
    """The rankings of every query's candidates (rows of the table) by the scores of SYSTEMS."""
    parts: list[pa.Table] = []
    for query, at, scores in found:
        docs = candidates["doc_id"].take(pa.array(at)).to_pylist()
        for system, score in zip(SYSTEMS, scores, strict=True):
            order = np.argsort(-score, kind="stable")
            size = len(order)
            parts.append(
                RUN.table(
                    {
                        "query_id": [query] * size,
                        "doc_id": [docs[row] for row in order.tolist()],
                        "system": [system] * size,
                        "rank": list(range(1, size + 1)),
                        "score": score[order].tolist(),
                    }
                )
            )
    return pa.concat_tables(parts)


def values_of(run: pa.Table, qrels: pa.Table) -> Reals:
    """The measure of every query's ranking by SYSTEMS, float64[3, Q]."""
    found = measures.evaluate(run, qrels, [MEASURE], SYSTEMS)
    system, value = np.array(found["system"].to_pylist()), found["value"].to_numpy()
    return np.stack([value[system == name] for name in SYSTEMS])


def results(of: Track, panels: int) -> Results:
    """Levels by design and calls, and the differences that the claim is of."""
    found = {(one.name, one.degree): measured(of, panels, one) for one in DESIGNS}
    documents = len(of.people) / next(iter(found.values())).shape[2]
    rows = []
    for (name, degree), values in found.items():
        levels = (harness.interval(contrast(name, "", [one])) for one in values[1:])
        rows.append((name, f"{documents * degree / 2:.0f}", *levels))
    first = contrast("BM25", "", [next(iter(found.values()))[0]])
    columns = ("design", "calls", *(f"{MEASURE}, {name}" for name in SYSTEMS[1:]))
    title = (
        f"{panels} panels, {first.queries} queries of {documents:.0f} passages; BM25 alone {harness.interval(first)}"
    )
    tables = [Table(title, columns, rows)]
    differences: dict[str, Any] = {}
    pairs = [(("top", degree), ("uniform", degree)) for degree in DEGREES]
    pairs += [(("top", 4), ("uniform", 16)), (("top", 3), ("uniform", 8))]
    for at, system in enumerate(SYSTEMS[1:], 1):
        compared = family(
            [contrast(f"{a[0]} {a[1]}", f"{b[0]} {b[1]}", [found[a][at] - found[b][at]]) for a, b in pairs]
        )
        tables.append(harness.contrasts_table(f"{system.capitalize()}, design and opponents a passage", compared))
        differences[system] = [asdict(one) for one in compared]
    levels = {f"{name} {degree}": values.mean(axis=(1, 2)).tolist() for (name, degree), values in found.items()}
    return Results(tables, (), {"levels": levels, "differences": differences})


def main(words: Sequence[str] | None = None) -> None:
    """Replay, print the tables."""
    parser = harness.parser(STUDY, data=True)
    parser.add_argument("--labels", required=True, help="all_judges.csv of TREC DL 2023")
    parser.add_argument("--panels", type=int, default=10, help="panels of three judges")
    given = parser.parse_args(words)

    def run() -> Results:
        folders = harness.folders(given.data, ("dl2023",))
        if not folders:
            raise ConfigError("no track is given", "--data", "give --data dl2023=FOLDER")
        return results(read(folders["dl2023"], given.labels), given.panels)

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
