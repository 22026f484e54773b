"""People check a run's judges: pairs are chosen, people answer them, and judges' agreement with them is told."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from anmi_ray.api.runs import Run
from anmi_ray.config.mine import MineConfig
from anmi_ray.core.arrays import Reals
from anmi_ray.core.errors import ConfigError, DamagedError, DataError
from anmi_ray.core.identity import id_column, id_matrix
from anmi_ray.core.records import QUERY, TEXT_OF
from anmi_ray.labelling import answers as kept
from anmi_ray.labelling import choice, exchange, judged
from anmi_ray.labelling.agreement import PeopleAnswers, agreement, kind_of
from anmi_ray.labelling.answers import AnswerWriter, PersonAnswer
from anmi_ray.labelling.desk import Desk, DocumentText, Question
from anmi_ray.store import Artifact
from anmi_ray.store.runs import find_run
from anmi_ray.tables import formats

if TYPE_CHECKING:
    from anmi_ray.labelling.server import LabelServer

PAIRS = 200
OVERLAP = 0.2
LEAST = 0.6
_ROUNDS = {"judge": "compare", "validate": "borderline"}  # stages of answers, and who says which pairs they compare
_FITTED = ("refit", "rate")
_REMEDY = "delete it: pairs are chosen anew, and people's answers stay"


@dataclass(frozen=True)
class ChosenPair:
    """A pair that people are asked about: its id in hexadecimal, its bucket, why it was chosen, with which probability
    (see `labelling.choice`), and whether everyone answers it.
    """

    pair: str
    bucket: int
    why: str
    probability: float
    everyone: bool


@dataclass(frozen=True)
class _Place:
    """Where a pair that somebody answered stands in the run, and what the run knows of it; a judge's side as in
    `JudgedPairs.sides`."""

    query: str
    kind: int
    doc_a: str
    doc_b: str
    sides: dict[str, float]
    gap: float


class Labelling:
    """What people are asked about a run, and what they answered. ConfigError: there is no such run, or nobody judged.

    pairs: how many are chosen; overlap: which share of them everyone answers. What is not given is as it was chosen
    before, or PAIRS and OVERLAP. Another choice keeps all answers, and takes the place of the last one under the root
    where `keep`. `notices` say what a user should know.

    >>> from anmi_ray.api.labelling import Labelling
    >>> len(Labelling(anmi_ray.Run("quickstart", root="results"), pairs=20).pairs)
    20
    """

    def __init__(self, run: Run, pairs: int | None = None, overlap: float | None = None, keep: bool = True) -> None:
        if pairs is not None and pairs < 1:
            raise ConfigError(f"{pairs} pairs are none", "--pairs", "give a number above 0")
        if overlap is not None and not 0.0 <= overlap <= 1.0:
            raise ConfigError(f"{overlap} is no share", "--overlap", "give a number from 0 to 1")
        self.run = run
        self.notices: list[str] = []
        self._keep = keep
        self._store = run.artifact("ingest").store
        self._path = f"{kept.folder_of(run.name)}/pairs.json"
        self._seed = int(run.record["config"].get("seed", 0))
        judge = run.artifact("judge", "judgments")
        answers = [judge, *filter(None, [self._complete("validate")])]
        self._rounds = [(run.artifact(_ROUNDS[one.stage]), one) for one in answers]
        self._of = {one.stage: one.fingerprint for one in answers}
        self._buckets = int((run.artifact("ingest").manifest() or {})["buckets"])
        self.pairs = self._chosen(pairs, overlap)

    @property
    def answers(self) -> list[PersonAnswer]:
        """All answers so far, in the order in which they were given."""
        return kept.read_answers(self._store, self.run.name)

    def server(self, people: int, names: Sequence[str] = (), port: int = 0) -> LabelServer:
        """The page, with a seat for each of `people`; see `labelling.server`."""
        from anmi_ray.labelling.server import LabelServer

        if people < 1:
            raise ConfigError(f"{people} people answer nothing", "--people", "give a number above 0, or names: ana,ben")
        writer = AnswerWriter(self._store, self.run.name)
        return LabelServer(Desk(self.questions, writer, people, names, self.answers, self._seed), port)

    @cached_property
    def questions(self) -> list[Question]:
        """The chosen pairs with their texts, in the order in which they were chosen."""
        found: dict[str, Question] = {}
        retrieve = self.run.artifact("retrieve")
        ingest = self.run.artifact("ingest")
        everyone = {one.pair: one.everyone for one in self.pairs}
        for bucket in sorted({one.bucket for one in self.pairs}):
            wanted = judged.ids_of(one.pair for one in self.pairs if one.bucket == bucket)
            here = judged.judged_pairs(self._rounds, bucket)
            pairs = here.pairs.take(pa.array(here.rows(wanted)))
            texts = retrieve.read_part("texts", bucket, TEXT_OF)
            sides = [judged.names_of(texts, pairs[side], "doc_id", ("title", "text")) for side in ("doc_a", "doc_b")]
            queries = ingest.read_part("queries", bucket, QUERY)
            query = judged.names_of(queries, pairs["query_id"], "query_id", ("text",))["text"]
            for at, pair in enumerate(judged.hexadecimal(pairs["pair"])):
                a, b = (DocumentText(side["title"][at], side["text"][at]) for side in sides)
                found[pair] = Question(pair, query[at], a, b, everyone[pair])
        return [found[one.pair] for one in self.pairs]

    def export(self, path: Path) -> int:
        """Write the chosen pairs as .csv, with the answers so far, or as tasks of Label Studio, .json; how many."""
        last = kept.last_answers(self.answers).values()
        csv = exchange.kind_of(path) == "csv"
        text = exchange.to_csv(self.questions, last) if csv else exchange.to_label_studio(self.questions)
        formats.write_text(text, path)
        return len(self.pairs)

    def take(self, path: Path) -> tuple[int, int]:
        """Take the answers of a file, all or none: (new ones, those that were known). DataError: it cannot be used.

        A person's answer of before, which they changed since, is known: an older copy of a file changes nothing back.
        """
        found = exchange.read_file_answers(path)
        exchange.refuse_unknown(found, self._places(answer.pair for answer in found), self.run.name)
        answers = self.answers
        given = {(answer.person, answer.pair, answer.side) for answer in answers}
        last = kept.last_answers(answers)
        new: list[PersonAnswer] = []
        older = 0
        for one in found:
            if (one.person, one.pair, one.side) not in given:
                new.append(PersonAnswer(one.pair, one.person, one.side, "ab", exchange.kind_of(path), time.time_ns()))
                given.add((one.person, one.pair, one.side))
            else:
                older += (one.person, one.pair) in last and last[one.person, one.pair].side != one.side
        if older:
            self.notices.append(
                f"{older:,} answers of {path} were changed since and stay so: who wants them back answers on the page"
            )
        if new:
            AnswerWriter(self._store, self.run.name).add(new)
        return len(new), len(found) - len(new)

    def preferences(self, path: Path) -> int:
        """Write people's answers as preferences, in the columns that `anmi audit`, `anmi rate` and the judge `imported`
        read, a judge a person; unsure is half of either. How many.
        """
        answers = list(kept.last_answers(self.answers).values())
        places = self._places(answer.pair for answer in answers)
        rows = [(places[answer.pair], answer) for answer in answers if answer.pair in places]
        if not rows:
            remedy = f"ask them: anmi label {self.run.name} --people 2 --root {shlex.quote(self.run.root)}"
            raise DataError("people have answered nothing", f"run {self.run.name}", remedy)
        worth = {"a": 1.0, "b": 0.0, "unsure": 0.5}
        columns = {
            "query_id": [place.query for place, _ in rows],
            "doc_a": [place.doc_a for place, _ in rows],
            "doc_b": [place.doc_b for place, _ in rows],
            "preference": [worth[answer.side] for _, answer in rows],
            "judge": [answer.person for _, answer in rows],
            "order": [answer.shown for _, answer in rows],
        }
        formats.write_table(pa.table(columns), path)
        return len(rows)

    def summary(self, least: float = LEAST) -> dict[str, Any]:
        """JSON-able: who answered how much and how they agree with judges and each other; see `labelling.agreement`.

        `gone` counts answers about pairs that the run has no more.
        """
        answers = self.answers
        last = kept.last_answers(answers)
        places = self._places(pair for _, pair in last)
        twice = kept.contradictions(answers)
        persons = sorted({person for person, _ in last})
        people = {
            person: {
                "answers": sum(who == person for who, _ in last),
                "unsure": sum(who == person and one.side == "unsure" for (who, _), one in last.items()),
                "contradictions": twice[person],
            }
            for person in persons
        }
        counted = {
            "run": self.run.name,
            "chosen": len(self.pairs),
            "random": sum(one.why == choice.RANDOM for one in self.pairs),
            "answered": len({pair for _, pair in last} & {one.pair for one in self.pairs}),
            "answers": len(last),
            "gone": sum(pair not in places for _, pair in last),
        }
        said = self._matrix(places, persons, last)
        return {**counted, "by_person": people, **agreement(said, least)}

    def _matrix(
        self, places: dict[str, _Place], persons: list[str], last: dict[tuple[str, str], PersonAnswer]
    ) -> PeopleAnswers:
        """What judges and people said of the answered pairs, as arrays."""
        pairs = list(places)
        judges = sorted({judge for place in places.values() for judge in place.sides})
        queries = {name: number for number, name in enumerate(sorted({place.query for place in places.values()}))}
        random = {one.pair for one in self.pairs if one.why == choice.RANDOM}
        value = {"a": 1.0, "b": -1.0, "unsure": 0.0}
        said: Reals = np.full((len(pairs), len(persons)), np.nan)
        at = {pair: row for row, pair in enumerate(pairs)}
        for (person, pair), answer in last.items():
            if pair in at:
                said[at[pair], persons.index(person)] = value[answer.side]
        sides = [[place.sides.get(judge, np.nan) for judge in judges] for place in places.values()]
        return PeopleAnswers(
            judges=tuple(judges),
            people=tuple(persons),
            query=np.array([queries[place.query] for place in places.values()], np.int64),
            kind=np.array([place.kind for place in places.values()], np.int64),
            random=np.array([pair in random for pair in pairs], np.bool_),
            gap=np.array([place.gap for place in places.values()], np.float64),
            judged=np.array(sides, np.float64).reshape(len(pairs), len(judges)),
            said=said,
        )

    def _places(self, pairs: Iterable[str]) -> dict[str, _Place]:
        """The run's judged pairs among ids in hexadecimal."""
        wanted = judged.ids_of(set(pairs))
        found: dict[str, _Place] = {}
        if not len(wanted):
            return found
        retrieve = self.run.artifact("retrieve")
        ingest = self.run.artifact("ingest")
        fitted = self._fitted()
        for bucket, here in judged.each_bucket(self._rounds, self._buckets):
            rows = here.rows(wanted)
            if not len(rows):
                continue
            pairs_here = here.pairs.take(pa.array(rows))
            sides = here.sides()[rows]
            texts = retrieve.read_part("texts", bucket, TEXT_OF, ["doc_id", "external_id"])
            queries = ingest.read_part("queries", bucket, QUERY, ["query_id", "external_id", "text"])
            asked = judged.names_of(queries, pairs_here["query_id"], "query_id", ("text",))["text"]
            columns = [
                judged.names_of(table, pairs_here[name], key, ("external_id",))["external_id"]
                for table, name, key in (
                    (queries, "query_id", "query_id"),
                    (texts, "doc_a", "doc_id"),
                    (texts, "doc_b", "doc_id"),
                )
            ]
            blank = np.full(len(rows), np.nan)
            gap = blank if fitted is None else judged.rating_differences(fitted, pairs_here, bucket)
            for row, pair in enumerate(judged.hexadecimal(pairs_here["pair"])):
                said = dict(zip(here.judges, sides[row].tolist(), strict=True))
                query, doc_a, doc_b = (column[row] for column in columns)
                found[pair] = _Place(query, kind_of(asked[row]), doc_a, doc_b, said, float(gap[row]))
        return found

    def _fitted(self) -> Artifact | None:
        """The last fit of the run, None where it is not rated."""
        return next(filter(None, map(self._complete, _FITTED)), None)

    def _complete(self, stage: str) -> Artifact | None:
        """What a stage made, None where the run has not come so far."""
        recorded = self.run.record["stages"].get(stage)
        artifact = None if recorded is None else Artifact(self._store, stage, recorded["fingerprint"])
        return None if artifact is None or artifact.manifest() is None else artifact

    def _chosen(self, pairs: int | None, overlap: float | None) -> list[ChosenPair]:
        """The pairs that were chosen before, or others where something else is wanted or was judged since."""
        known = self._store.read_json(self._path, _REMEDY)
        before = known["settings"] if known else {}
        wanted = {
            "pairs": before.get("pairs", PAIRS) if pairs is None else pairs,
            "overlap": before.get("overlap", OVERLAP) if overlap is None else overlap,
            "seed": self._seed,
        }
        if known and known["settings"] == wanted and known["of"] == self._of:
            try:
                return [ChosenPair(**row) for row in known["pairs"]]
            except TypeError:
                raise DamagedError("no choice of pairs", self._store.where(self._path), _REMEDY) from None
        chosen = self._choose(wanted["pairs"], wanted["overlap"])
        if known:
            stay = len({row["pair"] for row in known["pairs"]} & {one.pair for one in chosen})
            why = "other settings" if known["of"] == self._of else "the run was judged again since"
            self.notices.append(
                f"pairs are chosen anew ({why}): {stay:,} of {len(known['pairs']):,} stay; all answers are kept"
            )
        rows = [asdict(one) for one in chosen]
        if self._keep:
            self._store.publish_json(self._path, {"settings": wanted, "of": self._of, "pairs": rows})
        return chosen

    def _choose(self, count: int, overlap: float) -> list[ChosenPair]:
        fitted = self._fitted()
        mine = self.run.record["config"].get("mine", {})
        bound = float(mine.get("false_negative_gap", MineConfig().false_negative_gap))
        parts: list[choice.PairWorth] = []
        buckets: list[int] = []
        for bucket, here in judged.each_bucket(self._rounds, self._buckets):
            judges, orders = choice.disputes(here.p_a)
            near = np.zeros(len(judges))
            if fitted is not None:
                near = np.nan_to_num(choice.near_bound(*judged.gaps_of(fitted, here.pairs, bucket), bound))
            parts.append(choice.PairWorth(id_matrix(here.pairs["pair"]), judges, orders, near))
            buckets += [bucket] * len(judges)
        if not parts:
            remedy = f"see why: anmi audit {self.run.name} --root {shlex.quote(self.run.root)}"
            raise DataError("no judge answered any pair", f"run {self.run.name}", remedy)
        worth = choice.PairWorth(*(np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])))
        chosen = choice.choose(worth, count, overlap, self._seed)
        if count > len(worth):
            self.notices.append(f"the run has {len(worth):,} judged pairs, fewer than {count:,}: all are asked about")
        names = judged.hexadecimal(pa.chunked_array([id_column(worth.ids[chosen.row])]))
        columns = zip(names, chosen.row.tolist(), chosen.why, chosen.probability.tolist(), chosen.everyone, strict=True)
        return [
            ChosenPair(pair, buckets[row], why, probability, bool(all_))
            for pair, row, why, probability, all_ in columns
        ]


def people_of(run: Run) -> dict[str, Any] | None:
    """The summary of what people answered about a run, None where nobody has; nothing is written."""
    store, _ = find_run(run.name, run.root)
    if not store.names(f"{kept.folder_of(run.name)}/answers"):
        return None
    return Labelling(run, keep=False).summary()
