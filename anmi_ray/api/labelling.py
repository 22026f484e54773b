"""People check a run's judges: pairs are selected, people answer them, and the audit counts people as a judge."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.api import preferences
from anmi_ray.api.runs import Run
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.identity import comparison_id, doc_id, query_id
from anmi_ray.labelling import exchange, selection
from anmi_ray.labelling.answers import (
    Document,
    PersonAnswer,
    Question,
    add_answers,
    folder_of,
    last_answers,
    name_fault,
    read_answers,
)
from anmi_ray.tables import formats

if TYPE_CHECKING:
    from anmi_ray.labelling.page import LabelPage

EVERYONE = "all people"  # as one judge of the audit
_PAIR = ["pair", "query_id", "doc_a", "doc_b"]
_PREFERENCE = {"a": 1.0, "b": 0.0, "unsure": 0.5}


class Labelling:
    """The pairs that people are asked about, and their answers. Raise ConfigError if the run does not exist.

    pairs, overlap: how many pairs to select, and the share of them that everyone answers; None: as selected before,
    else 200 and 0.2. A new selection keeps all answers, and replaces the stored one if `keep`.

    >>> from anmi_ray.api.labelling import Labelling
    >>> len(Labelling(anmi_ray.Run("quickstart", root="results"), pairs=20).pairs)
    20
    """

    def __init__(self, run: Run, pairs: int | None = None, overlap: float | None = None, keep: bool = True) -> None:
        self.run = run
        self.notices: list[str] = []
        self._store, record = run.store, run.record
        path = f"{folder_of(run.name)}/pairs.json"
        remedy = "delete it: pairs are selected again, and people's answers stay"
        before = self._store.read_json(path, remedy) or {"settings": {"pairs": 200, "overlap": 0.2}, "pairs": []}
        settings: dict[str, Any] = {**before["settings"], "seed": int(record["config"].get("seed", 0))}
        settings |= {} if pairs is None else {"pairs": pairs}
        settings |= {} if overlap is None else {"overlap": overlap}
        self._seed = settings["seed"]
        stages = record["stages"]
        judged = {stage: stages[stage]["fingerprint"] for stage in ("judge", "validate") if stage in stages}
        self.pairs = [selection.SelectedPair(row["pair"], row["why"], row["everyone"]) for row in before["pairs"]]
        if (before["settings"], before.get("of")) == (settings, judged):
            return
        known = {one.pair for one in self.pairs}
        self.pairs = self._select(settings["pairs"], settings["overlap"])
        if known:
            stay = sum(one.pair in known for one in self.pairs)
            self.notices.append(f"selected other pairs: {stay:,} of {len(known):,} stay; all answers are kept")
        if keep:
            rows = [asdict(one) for one in self.pairs]
            self._store.publish_json(path, {"settings": settings, "of": judged, "pairs": rows})

    @property
    def answers(self) -> list[PersonAnswer]:
        """Return all answers, oldest first."""
        return read_answers(self._store, self.run.name)

    def page(self, people: Sequence[str], port: int = 0) -> LabelPage:
        """Return the page for `people`. Raise ConfigError if a name is invalid or FastAPI is not installed."""
        for fault in filter(None, map(name_fault, people)):
            raise ConfigError(fault, "--people", "write --people ana,ben")
        try:
            from anmi_ray.labelling.page import LabelPage, queues_of
        except ModuleNotFoundError as error:
            raise ConfigError(f"{error.name} is not installed", "anmi label", environment.install("serve")) from None
        last: dict[tuple[str, str], str] = {key: one.side for key, one in last_answers(self.answers).items()}
        questions = [(question, one.everyone) for question, one in zip(self.questions(), self.pairs, strict=True)]
        queues = queues_of(questions, people, set(last), self._seed)
        return LabelPage(queues, last, lambda one: add_answers(self._store, self.run.name, [one]), self._seed, port)

    def questions(self) -> list[Question]:
        """Return the selected pairs with their texts, in order of selection."""
        keys = {row["pair"]: row for row in self._judged(one.pair for one in self.pairs).to_pylist()}
        queries = self._rows("queries", "query_id", {row["query_id"] for row in keys.values()})
        texts = self._rows("texts", "doc_id", {row[name] for row in keys.values() for name in ("doc_a", "doc_b")})
        documents = {name: Document(row["title"], row["text"]) for name, row in texts.items()}
        return [
            Question(row["pair"], queries[row["query_id"]]["text"], documents[row["doc_a"]], documents[row["doc_b"]])
            for row in (keys[one.pair] for one in self.pairs)
        ]

    def export(self, path: Path) -> int:
        """Write the selected pairs as .csv, with the answers so far, or .json for Label Studio; return their number."""
        csv = exchange.kind_of(path) == "csv"
        questions, last = self.questions(), last_answers(self.answers).values()
        formats.write_text(exchange.to_csv(questions, last) if csv else exchange.to_label_studio(questions), path)
        return len(questions)

    def take(self, path: Path) -> tuple[int, int]:
        """Import the answers of a file, all or none; return the numbers of new and of known ones. Raise DataError.

        An answer that its person has changed since is known: an older copy of a file changes nothing back.
        """
        answers = exchange.read_file_answers(path)
        present = set(self._judged(one.pair for one in answers)["pair"].to_pylist())
        if unknown := [one for one in answers if one.pair not in present]:
            what = f"{len(unknown):,} of {len(answers):,} answers name pairs that run {self.run.name} does not have"
            remedy = "name the run whose pairs were exported; nothing was imported"
            raise DataError(f"{what}, the first {unknown[0].pair}", unknown[0].place, remedy)
        known = {(one.person, one.pair, one.side) for one in self.answers}
        new = {key: one for one in answers if (key := (one.person, one.pair, one.side)) not in known}.values()
        source, now = exchange.kind_of(path), time.time_ns()
        if new:
            rows = [PersonAnswer(one.pair, one.person, one.side, "ab", source, now) for one in new]
            add_answers(self._store, self.run.name, rows)
        return len(new), len(answers) - len(new)

    def preferences(self, path: Path) -> int:
        """Write people's answers in the columns that `anmi audit`, `anmi rate` and the judge `imported` read.

        Each person is a judge, and unsure is 0.5. Return the number of answers.
        """
        last = last_answers(self.answers)
        judged = self._judged(pair for _, pair in last)
        people = pa.Table.from_pylist(_of_people(last, judged), judged.schema)
        if not people.num_rows:
            raise DataError("no answers yet", f"run {self.run.name}", f"anmi label {self.run.name} --people ana,ben")
        formats.write_table(people.drop_columns(["pair"]), path)
        return people.num_rows

    def audit(self) -> dict[str, Any]:
        """Return how judges agree with people, over the pairs that people answered; JSON-able.

        answers: number of answers by person
        gone: answers to pairs that the run no longer has
        random, all: figures of `anmi_ray.audit` over the random pairs, and over all; judges are those of the run, each
        person as "NAME (person)", and EVERYONE, the mean of all people's answers to a pair
        """
        last = last_answers(self.answers)
        judged = self._judged(pair for _, pair in last)
        rows = _of_people(last, judged)
        by_pair: dict[str, list[float]] = {}
        for row in rows:
            by_pair.setdefault(row["pair"], []).append(row["preference"])
        means = {pair: {"order": "ab", "preference": sum(values) / len(values)} for pair, values in by_pair.items()}
        together = {row["pair"]: {**row, **means[row["pair"]], "judge": EVERYONE} for row in rows}
        each = [{**row, "judge": f"{row['judge']} (person)"} for row in rows]
        answers = pa.concat_tables([judged, pa.Table.from_pylist([*together.values(), *each], judged.schema)])
        random = pa.array([one.pair for one in self.pairs if one.why == selection.RANDOM], pa.string())
        parts = {"random": answers.filter(pc.is_in(answers["pair"], random)), "all": answers}
        return {
            "answers": dict(Counter(person for person, _ in sorted(last))),
            "gone": len(last) - len(rows),
            **{name: preferences.audit(part).figures if part.num_rows else None for name, part in parts.items()},
        }

    def _select(self, count: int, overlap: float) -> list[selection.SelectedPair]:
        weights: dict[str, float] = {}
        for answers in _judgments(self.run):
            for pair, weight in selection.disputes(answers):  # in each round in which the pair was judged
                weights[pair] = max(weight, weights.get(pair, 0.0))
        if not weights:
            raise DataError("no judge answered any pair", f"run {self.run.name}", f"anmi audit {self.run.name}")
        if count > len(weights):
            self.notices.append(f"the run has {len(weights):,} judged pairs, fewer than {count:,}: all are selected")
        return selection.select(weights, count, overlap, self._seed)

    def _judged(self, pairs: Iterable[str]) -> pa.Table:
        """Return the judges' answers to `pairs`, sorted: _PAIR, judge, order, preference (the mean over rounds)."""
        wanted = pa.array(sorted(set(pairs)), pa.string())
        keys = [*_PAIR, "judge", "order"]
        parts = [part.filter(pc.is_in(part["pair"], wanted)) for part in _judgments(self.run)]
        table = pa.concat_tables(parts).group_by(keys).aggregate([("p_a", "mean")])
        return table.rename_columns([*keys, "preference"]).sort_by([(name, "ascending") for name in keys])

    def _rows(self, table: Literal["queries", "texts"], key: str, wanted: set[str]) -> dict[str, dict[str, Any]]:
        ids = pa.array(sorted(wanted), pa.string())
        parts = (part.filter(pc.is_in(part[key], ids)) for part in self.run.buckets(table))
        return {row[key]: row for part in parts for row in part.to_pylist()}


def _judgments(run: Run) -> Iterator[pa.Table]:
    """Yield the answers of a run's judges by bucket and round: columns of _PAIR, judge, order, p_a."""
    for table in run.buckets("judgments"):
        table = table.filter(pc.is_valid(table["p_a"])).select([*_PAIR[1:], "judge", "order", "p_a"])
        pairs = table.group_by(_PAIR[1:]).aggregate([])
        keys = zip(*(pairs[name].to_pylist() for name in _PAIR[1:]), strict=True)
        ids = [comparison_id(query_id(query), doc_id(a), doc_id(b)).hex() for query, a, b in keys]
        yield table.join(pairs.append_column("pair", pa.array(ids, pa.string())), _PAIR[1:])


def _of_people(last: Mapping[tuple[str, str], PersonAnswer], judged: pa.Table) -> list[dict[str, Any]]:
    """Return people's answers to pairs of `judged` as rows with its columns."""
    keys = {row["pair"]: {name: row[name] for name in _PAIR} for row in judged.to_pylist()}
    return [
        {**keys[pair], "judge": person, "order": one.shown, "preference": _PREFERENCE[one.side]}
        for (person, pair), one in last.items()
        if pair in keys
    ]


def audit_of_people(run: Run) -> dict[str, Any] | None:
    """Return `Labelling.audit`, or None if people answered nothing; write nothing."""
    return Labelling(run, keep=False).audit() if run.store.names(f"{folder_of(run.name)}/answers") else None
