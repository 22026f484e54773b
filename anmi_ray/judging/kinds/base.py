"""Base classes of judges: the identity of answers, how a judge is asked, its cost and its resources.

A judge object holds only its settings, so it is cheap to make and to send to other processes. Judges that read texts
are asked through an engine, which is built where it runs (in an actor) and may hold a connection or a model. An engine
takes questions in slices, each when it is about to ask it, since the budget admits slices one at a time. It publishes
every question that it took exactly once, as an answer or as a failure with its reason, before it returns. Methods are
documented here; a subclass repeats a docstring only to add to it.
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
from anmi_ray.config.execution import ExecutionConfig, PlanConfig
from anmi_ray.config.needs import Need
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
from anmi_ray.judging.spend import Price
from anmi_ray.store.spend_log import Spend

ACTOR_CPUS = 0.5  # of an asking actor
JUDGE_LABELS = "execution.judge_on"  # setting with the labels of judges' nodes
Reals = NDArray[np.float64]
Publish = Callable[[pa.Table], None]  # takes Answer rows
Slices = Iterator[Rows]  # question indices, int64[N] each; may be consumed by another thread


class JudgeEngine(Protocol):
    """Asks questions; see the module docstring.

    at_once: minimum number of questions of a slice; slices hold whole queries.
    messages: first message of the server per failure reason.
    """

    at_once: int
    messages: dict[str, str]

    @property
    def spend(self) -> Spend:
        """Requests and spend since the engine was built, including calls in flight."""
        ...

    def ask(self, questions: TextQuestions, slices: Slices, publish: Publish) -> None:
        """Ask the questions of all slices."""
        ...


@dataclass(frozen=True)
class ModelInputs:
    """Inputs of a model on the cluster: `form` (a document or a pair at a time) and the maximum number of `tokens`."""

    form: str
    tokens: int


@dataclass(frozen=True)
class Judge(ABC):
    """A judge as described by its settings. A judge that answers in process overrides `ask`."""

    config: Any

    @property
    def name(self) -> str:
        """Name of the judge in its panel."""
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
        """Return fingerprint inputs of a stage that asks it, in addition to its settings."""
        return {}

    def check(self) -> None:
        """Raise ConfigError if it cannot be asked from this process, for example if a package is missing."""
        return

    def model_inputs(self, distill: DistillConfig | None) -> ModelInputs | None:
        """Return the inputs of its own model, if any; distill: settings of distilled judges."""
        return None

    def resolved(self, made: Mapping[str, Any]) -> Any:
        """Return its settings after distillation; made: settings of an encoder judge with the distilled model."""
        return self.config

    def ask(self, asked: Questions, order: Order, difference: Reals, seed: int) -> Answers:
        """Return the answers of a judge that computes in process; difference: float[P], true differences in probits."""
        raise AssertionError(f"nothing was bought from judge {self.name}")


@dataclass(frozen=True)
class TextJudge(Judge):
    """A judge that reads texts. Its answers are logged under its identity and read whenever they are needed."""

    # actors: each builds an engine; engines: Ray Data's LLM engines (`stages.judge.vllm`)
    asked_by: ClassVar[Literal["actors", "engines"]] = "actors"

    @abstractmethod
    def content(self) -> dict[str, object]:
        """Return everything that can change an answer, as JSON values."""

    @abstractmethod
    def engine(self, lease: Leases | None = None, answered: bool = False) -> JudgeEngine:
        """Build its engine, for use in this process.

        lease: shared rate limits, if several processes ask the same server.
        answered: the judge has answered before, so its server knows the model.
        """

    @property
    def identity(self) -> str:
        """Hash of everything that can change an answer, but not of the judge's name; identifies its answers."""
        content = {"kind": self.config.kind, **self.content()}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return digest("judge", text).hex()[:16]

    def fingerprint_inputs(self) -> dict[str, str]:
        """Return its answers' identity."""
        return {f"answers of {self.name}": self.identity}

    @property
    def gpus(self) -> float:
        """GPUs of one actor or engine."""
        return 0.0

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Requests and tokens per minute that its server accepts from all actors; None: no limit."""
        return None, None

    @property
    def max_dollars(self) -> float:
        """Maximum dollars of a question, with texts of maximum length; 0 without prices."""
        return 0.0

    def estimated_dollars(self, questions: TextQuestions) -> Reals:
        """Return the estimated dollars of each question by the lengths of its texts, float64[N]; 0 without prices."""
        return np.zeros(len(questions.query))

    def paid(self, answers: pa.Table) -> tuple[Reals, Reals] | None:
        """Return lower and upper bounds on the dollars of Answer rows at current prices, float64[N]; None: unknown."""
        return np.zeros(answers.num_rows), np.zeros(answers.num_rows)

    def actors(self, execution: ExecutionConfig) -> tuple[int, int]:
        """Return the minimum and maximum number of actors or engines."""
        return execution.asking

    def one_of(self, actors: int) -> TextJudge:
        """Return the judge with its rate limits divided among `actors` actors."""
        return self

    def read_reply(self) -> ReadReply | None:
        """Return the parser of its replies; None if it returns probabilities."""
        return None


@dataclass(frozen=True)
class PromptJudge(TextJudge):
    """A language model that is asked with a prompt."""

    @property
    def prompt(self) -> PromptConfig:
        """Its prompt, and how replies are parsed."""
        return self.config.prompt

    @property
    @abstractmethod
    def longest_answer(self) -> float:
        """Maximum number of tokens of an answer; infinity without a limit."""

    @abstractmethod
    def prompt_builder(self) -> PromptBuilder:
        """Return the builder of its prompts, with its own tokenizer if available. Raises ConfigError."""

    @abstractmethod
    def price(self, calls: int, prompt: float, answer: float, plan: PlanConfig) -> Price:
        """Predict the cost of `calls` calls, with total numbers of prompt and answer tokens."""

    def fingerprint_inputs(self) -> dict[str, str]:
        """Return its answers' identity and the version of the reply parser."""
        rules = {} if self.prompt.readout == "logprob" else {f"reading of {self.name}": parse_reply.RULES}
        return {**super().fingerprint_inputs(), **rules}

    def content(self) -> dict[str, object]:
        """Return the prompt's part of the content."""
        shown = whole(self.prompt)
        content: dict[str, object] = {name: shown[name] for name in ("query_tokens", "document_tokens", "tokenizer")}
        content["template"] = load_template(self.prompt.template).content_hash
        content["logprob"] = self.prompt.readout == "logprob"  # probabilities are logged, else replies
        return content

    def read_reply(self) -> ReadReply | None:
        """Return the parser of its replies; None for log-probabilities."""
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


# Default values of Answer columns: null, zero or false.
DEFAULTS: dict[str, object] = {
    column.name: None if column.nullable else False if pa.types.is_boolean(column.type) else 0
    for column in ANSWER.schema
    if column.name not in ANSWER.key
}


def answer_rows(questions: TextQuestions, which: Rows, **columns: object) -> pa.Table:
    """Return Answer rows of the questions `which`; missing columns get null, zero or false."""
    defaults = {
        name: pa.repeat(pa.scalar(value, ANSWER.schema.field(name).type), len(which))
        for name, value in DEFAULTS.items()
        if name not in columns
    }
    return ANSWER.table({**questions.hashes(which), **defaults, **columns})


def failures_of(answers: pa.Table, judge: TextJudge, messages: Mapping[str, str] | None = None) -> dict[str, int]:
    """Count Answer rows without a preference by reason, including unparsable replies.

    messages: the server's message per reason, appended to the reason.
    """
    _, error = of_answers(answers, judge.read_reply())
    counts = {row["values"]: row["counts"] for row in pc.value_counts(error.drop_null()).to_pylist()}
    details = messages or {}
    return {f"{why}: {details[why]}" if details.get(why) else why: count for why, count in counts.items()}


def by_frequency(failures: Mapping[str, int], most: int = 3) -> str:
    """Format the most frequent failure reasons with their counts."""
    reasons = sorted(failures.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {why}" for why, count in reasons[:most])
