"""What a judge is, whatever its kind: what names its answers, how it is asked, what it costs, what resources it needs.

A judge object holds nothing but its settings, so that it costs nothing to make and travels to any process. Judges that
read texts are asked through an engine, which is built where it runs (an actor) and may hold a connection or a model.
Questions come in slices, which are let through as they are taken (a budget may end them): an engine takes a slice when
it is about to ask it. It hands over every question that it took exactly once, as an answer or as a failure with its
reason, at the latest when it returns.
Letters: N questions, P comparisons.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.config.base import whole
from anmi_ray.config.distill import DistillConfig
from anmi_ray.config.endpoint import EndpointConfig
from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.needs import Need
from anmi_ray.config.plan import PlanConfig
from anmi_ray.config.prompt import PromptConfig
from anmi_ray.core.identity import digest
from anmi_ray.core.records import ANSWER
from anmi_ray.judging import parse_reply
from anmi_ray.judging.http.limits import Leases
from anmi_ray.judging.preferences import ReadReply, of_answers, vote
from anmi_ray.judging.prompt import load_template
from anmi_ray.judging.prompt_builder import PromptBuilder
from anmi_ray.judging.protocol import Answers, Order, Questions
from anmi_ray.judging.questions import Rows, TextQuestions
from anmi_ray.store.spend_log import Spend

ACTOR_CPUS = 0.5  # that an asking actor takes
JUDGE_LABELS = "execution.judge_on"  # the setting of the labels of judges' nodes
Reals = NDArray[np.float64]
HandOver = Callable[[pa.Table], None]  # takes Answer rows
Slices = Iterator[Rows]  # of questions, each int64[N]; the next may take milliseconds, and a thread may take it


class JudgeEngine(Protocol):
    """Asks questions; see the module.

    at_once: questions that a slice has, at least; whole queries
    messages: a server's own message by reason of failure, the first of each
    """

    at_once: int
    messages: dict[str, str]

    @property
    def spend(self) -> Spend:
        """What was sent and spent so far, since the engine was built; a call that is under way counts."""
        ...

    def ask(self, questions: TextQuestions, slices: Slices, hand_over: HandOver) -> None:
        """Ask all questions of all slices."""
        ...


@dataclass(frozen=True)
class Price:
    """What asking would cost: dollars (at most so many), hours by the rate limit that `limit` names; None: not known.

    Where a judge runs on the cluster's own GPUs, `gpus` says in words what they do, and gpu_hours for how long.
    """

    dollars: float | None = None
    at_most: float | None = None
    hours: float | None = None
    limit: str = ""
    gpus: str = ""
    gpu_hours: float | None = None


@dataclass(frozen=True)
class ModelInputs:
    """What a model on the cluster's CPUs or GPUs reads: a document or a pair at a time, of at most so many tokens."""

    form: str
    tokens: int


@dataclass(frozen=True)
class Judge(ABC):
    """A judge as its settings describe it. One that answers in process overrides `ask`."""

    config: Any

    @property
    def name(self) -> str:
        """What the judge is called in its panel."""
        return self.config.name

    def need(self, place: str, on: Mapping[str, str]) -> Need | None:
        """Return the resources that asking it needs at least; None if the stage's own tasks ask it.

        place: dotted name of its settings. on: labels of the nodes that it may run on.
        """
        return None

    @property
    def server(self) -> EndpointConfig | None:
        """The endpoint that texts are sent to, if any."""
        return None

    def fingerprint_inputs(self) -> dict[str, str]:
        """What, beside its settings, a stage that asks it follows from."""
        return {}

    def check(self) -> None:
        """Raise ConfigError where it cannot be asked from here, such as for a package that is not installed."""
        return

    def model_inputs(self, distill: DistillConfig | None) -> ModelInputs | None:
        """What a model of its own reads here, if any; distill: how distilled judges are made."""
        return None

    def resolved(self, made: Mapping[str, Any]) -> Any:
        """Its settings once the run's distillation is there; made: settings of an encoder judge that asks its model."""
        return self.config

    def ask(self, asked: Questions, order: Order, difference: Reals, seed: int) -> Answers:
        """Answers of a judge that computes in process; difference float[P]: what a simulated panel sees, in probits."""
        raise AssertionError(f"nothing was bought from judge {self.name}")


@dataclass(frozen=True)
class TextJudge(Judge):
    """A judge that reads texts: its answers are bought, kept under its identity, and read whenever they are needed."""

    # actors: each builds an engine; engines: Ray's own, of a large model (`stages.judge.vllm`)
    asked_through: ClassVar[Literal["actors", "engines"]] = "actors"

    @abstractmethod
    def content(self) -> dict[str, object]:
        """All that can change an answer, as JSON values."""

    @abstractmethod
    def engine(self, lease: Leases | None = None, answered: bool = False) -> JudgeEngine:
        """What asks it, for use where it is built; `lease` where several share a server's limits a minute.

        answered: an answer of the judge is there already, so that its server knows it.
        """

    @property
    def identity(self) -> str:
        """Names the judge's answers: a hash of all that can change one, and not of what it is called in a panel."""
        content = {"kind": self.config.kind, **self.content()}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return digest("judge", text).hex()[:16]

    def fingerprint_inputs(self) -> dict[str, str]:
        """The answers that it is asked for."""
        return {f"answers of {self.name}": self.identity}

    @property
    def gpus(self) -> float:
        """GPUs that one actor or engine holds."""
        return 0.0

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Requests and tokens a minute that its server takes from all actors; None: no limit."""
        return None, None

    @property
    def dearest(self) -> float:
        """Dollars that one question may cost, with the longest texts that it is shown; 0 where it has no prices."""
        return 0.0

    def likely_dollars(self, questions: TextQuestions) -> Reals:
        """Dollars float64[N] that each question may cost, by the lengths of its texts; 0 where it has no prices."""
        return np.zeros(len(questions.query))

    def paid(self, answers: pa.Table) -> tuple[Reals, Reals] | None:
        """Dollars float64[N] that Answer rows cost at least and at most, at today's prices; None: not known."""
        return np.zeros(answers.num_rows), np.zeros(answers.num_rows)

    def actors(self, execution: ExecutionConfig) -> tuple[int, int]:
        """Fewest and most actors or engines that may ask it at once."""
        return execution.asking

    def one_of(self, actors: int) -> TextJudge:
        """The judge as one of so many actors may ask it, so that together they keep its limits."""
        return self

    def read_reply(self) -> ReadReply | None:
        """How its words are read; None where it gives probabilities."""
        return None


@dataclass(frozen=True)
class PromptJudge(TextJudge):
    """A language model that is asked by a prompt."""

    @property
    def prompt(self) -> PromptConfig:
        """What it is asked, and how its answer is read."""
        return self.config.prompt

    @property
    @abstractmethod
    def longest_answer(self) -> float:
        """Tokens of the longest answer; infinity where nothing limits it."""

    @abstractmethod
    def prompt_builder(self) -> PromptBuilder:
        """What makes its prompts, with its own tokenizer where there is one. Raises ConfigError."""

    @abstractmethod
    def price(self, calls: int, prompt: float, answer: float, plan: PlanConfig) -> Price:
        """What so many calls would cost, with so many tokens of prompts and of answers in all."""

    def fingerprint_inputs(self) -> dict[str, str]:
        """Its answers, and the rules by which words are read."""
        rules = {} if self.prompt.readout == "logprob" else {f"reading of {self.name}": parse_reply.RULES}
        return {**super().fingerprint_inputs(), **rules}

    def content(self) -> dict[str, object]:
        """The prompt's part of it."""
        shown = whole(self.prompt)
        content: dict[str, object] = {name: shown[name] for name in ("query_tokens", "document_tokens", "tokenizer")}
        content["template"] = load_template(self.prompt.template).content_hash
        content["logprob"] = self.prompt.readout == "logprob"  # then probabilities are kept, else words
        return content

    def read_reply(self) -> ReadReply | None:
        """How its words are read; None where the probabilities of letters are."""
        readout = self.prompt.readout
        if readout == "logprob":
            return None
        form = load_template(self.prompt.template).form

        def read(words: str) -> float | str:
            value = parse_reply.read(words, form)
            return value if isinstance(value, str) else float(vote(np.array([value]), readout)[0])

        return read


def actor_need(place: str, on: Mapping[str, str], gpus: float = 0.0) -> Need:
    """Return the resources of one asking actor."""
    each = {"CPU": ACTOR_CPUS, **({"GPU": gpus} if gpus else {})}
    return Need("asking actor", 1, each, place, on, gpu=f"{place}.gpus: 0", labels=JUDGE_LABELS)


# What an Answer row says of its answer where nothing is known: null, zero or false.
NOTHING: dict[str, object] = {
    column.name: None if column.nullable else pa.scalar(0).cast(column.type).as_py()
    for column in ANSWER.schema
    if column.name not in ANSWER.key
}


def answer_rows(questions: TextQuestions, which: Rows, **columns: object) -> pa.Table:
    """Answer rows of the questions `which`; a column that is not given is null, zero or false throughout."""
    nothing = {
        name: pa.repeat(pa.scalar(value, ANSWER.schema.field(name).type), len(which))
        for name, value in NOTHING.items()
        if name not in columns
    }
    return ANSWER.table({**questions.hashes(which), **nothing, **columns})


def failures_of(answers: pa.Table, judge: TextJudge, messages: Mapping[str, str] | None = None) -> dict[str, int]:
    """Count Answer rows without a preference by reason, those that cannot be read included.

    messages: a server's own message by reason, which is added to the reason.
    """
    _, error = of_answers(answers, judge.read_reply())
    counts = {row["values"]: row["counts"] for row in pc.value_counts(error.drop_null()).to_pylist()}
    said = messages or {}
    return {f"{why}: {said[why]}" if said.get(why) else why: count for why, count in counts.items()}


def by_frequency(failures: Mapping[str, int], most: int = 3) -> str:
    """The most frequent reasons of failures with their counts, as text."""
    reasons = sorted(failures.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {why}" for why, count in reasons[:most])
