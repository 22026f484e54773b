"""Judges that are models without a prompt: they score documents, or read a pair.

A reranker, or a language model read by the likelihood of the query, scores every (query, document) once and answers all
questions about it from that score. A pairwise model reads the query and both documents at once, truncated to one
length, the longest first, so both are shown equally. A distilled judge's folder describes how it is asked and read.
Letters: N questions, L labels.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import log_softmax

from anmi_ray.config.base import whole
from anmi_ray.config.distill import DistillConfig
from anmi_ray.config.encoder_judge import FRAME, NO_LABELS, TEXT, TEXT_PAIR, EncoderJudgeConfig
from anmi_ray.config.needs import Need
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.scale import log_sigmoid
from anmi_ray.judging.calibration import log_probabilities
from anmi_ray.judging.http.limits import Leases
from anmi_ray.judging.kinds import distilled
from anmi_ray.judging.kinds.base import ModelInputs, Publish, Reals, Slices, TextJudge, actor_need, answer_rows
from anmi_ray.judging.kinds.distilled import DistilledForm
from anmi_ray.judging.questions import AT_ONCE, Rows, TextQuestions
from anmi_ray.judging.truncate import Truncator
from anmi_ray.models import loading
from anmi_ray.store.spend_log import Spend

if TYPE_CHECKING:
    from anmi_ray.models.classifier import Resources

TOKENS = 512  # assumed maximum if neither settings nor folder define it
NOT_FINITE = "the model's score is not finite"
_OF_THE_FOLDER = ("first_label", "second_label", "tie_label", "max_tokens")  # of distilled judges
Logs = dict[str, Reals]  # log_first, log_second and, of models with ties, log_tie: float64[N], NaN where not finite
Answered = Iterator[tuple[Rows, Logs]]


@dataclass(frozen=True)
class EncoderJudge(TextJudge):
    """A model that runs in asking actors."""

    config: EncoderJudgeConfig

    def need(self, place: str, on: Mapping[str, str]) -> Need:
        return actor_need(place, on, self.config.gpus)

    @property
    def gpus(self) -> float:
        return self.config.gpus

    def content(self) -> dict[str, object]:
        """Return all settings except the name; a local model is identified by its content."""
        form = form_of(self.config)
        model = source(self.config)
        shown = whole(self.config)
        unsaid = ("name", "model", *(_OF_THE_FOLDER if form else ()))
        content: dict[str, object] = {name: shown[name] for name in shown if name not in unsaid}
        content |= {} if form else {"text": TEXT, "text_pair": TEXT_PAIR}
        content |= {"frame": FRAME} if self.config.form == "likelihood" else {}
        return content | {"weights": model.revision if model.is_local else f"{model.path_or_id}@{model.revision}"}

    def engine(self, lease: Leases | None = None, answered: bool = False) -> EncoderEngine:
        return EncoderEngine(self.config)

    def model_inputs(self, distill: DistillConfig | None) -> ModelInputs:
        """Return the inputs of its model. Raises the errors of `form_of`."""
        form = form_of(self.config)
        tokens = self.config.max_tokens if form is None else form.max_tokens
        return ModelInputs(self.config.form, tokens or TOKENS)


def source(config: EncoderJudgeConfig) -> loading.ModelSource:
    """Return the source of the model's weights. Raises ConfigError if there is no such model."""
    if Path(config.model).expanduser().is_dir():
        return loading.resolve(config.model, config.trust_remote_code)
    return _published(config.model, config.trust_remote_code)


@functools.lru_cache(maxsize=64)
def _published(model: str, trust: bool) -> loading.ModelSource:
    """Resolve a model of the hub or of a package once per process."""
    return loading.resolve(model, trust)


def form_of(config: EncoderJudgeConfig) -> DistilledForm | None:
    """Return the form of a distilled judge from the judge.json in its folder; None for other models.

    Raises ConfigError if that file is damaged, settings that are not at their defaults contradict it, or neither names
    the labels.
    """
    place = f"model {config.model}"
    form = distilled.read(Path(config.model).expanduser())
    if config.form != "pairwise":
        if form is not None:
            raise ConfigError(f"has a {distilled.FILE}, so it reads both documents", place, "set form: pairwise")
        return None
    if form is None:
        if config.first_label is None:
            remedy = f"name them, or give the folder of a distilled judge, which holds {distilled.FILE}"
            raise ConfigError(NO_LABELS, place, remedy)
        return None
    labels = dict(zip(("first_label", "second_label", "tie_label"), form.labels, strict=False))
    held = {"first_label": None, "second_label": None, "tie_label": None}
    held |= {"max_tokens": form.max_tokens}
    held |= {} if form.target == "two-head" else labels
    for name in _OF_THE_FOLDER:
        given = getattr(config, name)
        if given != type(config).model_fields[name].default and given != held[name]:
            remedy = "remove the setting, or distill again"
            raise ConfigError(f"`{name}` is {given!r}, and its {distilled.FILE} says {held[name]!r}", place, remedy)
    return form


class EncoderEngine:
    """Loads the model. Raises ConfigError if that fails or the model does not fit the form."""

    def __init__(self, config: EncoderJudgeConfig) -> None:
        distilled_form = form_of(config)
        self.form = Pairwise(config, distilled_form) if config.form == "pairwise" else Pointwise(config)
        self.at_once = self.form.at_once
        self.messages: dict[str, str] = {}
        self.spend = Spend()

    def ask(self, questions: TextQuestions, slices: Slices, publish: Publish) -> None:
        """Publish at most AT_ONCE answers at a time. Raises JudgeError if memory runs out."""
        texts = Texts(questions)
        for which in slices:
            empty = texts.empty(which)
            for name in ("query", "document"):
                for rows in _parts(which[empty == name]):
                    publish(answer_rows(questions, rows, error=[f"empty {name}"] * len(rows)))
            for rows, logs in self.form.answers(texts, which[empty == ""]):
                self.spend += Spend(requests=len(rows))
                publish(answer_rows(questions, rows, attempts=[1] * len(rows), **_columns(logs)))


class Texts:
    """Texts of questions as models read them."""

    def __init__(self, questions: TextQuestions) -> None:
        from anmi_ray.models.pairs import document_text

        self.questions = questions
        self.documents = questions.texts.num_rows
        self._joined = document_text

    def query(self, row: int) -> str:
        """Return a query's text."""
        return self.questions.queries["text"][row].as_py().strip()

    def document(self, row: int) -> str:
        """Return a document's title and body."""
        texts = self.questions.texts
        return self._joined(texts["title"][row].as_py().strip(), texts["text"][row].as_py().strip())

    def empty(self, which: Rows) -> NDArray[np.str_]:
        """Return for each question "query" or "document" if that text is empty, else ""."""
        asked = self.questions
        found = np.full(len(which), "", dtype="<U8")
        sides: tuple[tuple[str, Callable[[int], str], Rows], ...] = (
            ("document", self.document, asked.first[which]),
            ("document", self.document, asked.second[which]),
            ("query", self.query, asked.query[which]),
        )
        for kind, text, rows in sides:
            bare = [row for row in np.unique(rows).tolist() if not text(row)]
            found[np.isin(rows, bare)] = kind
        return found


class Pointwise:
    """A model of (query, document): the preference is σ(slope · (score of the first − score of the second)).

    P that one document answers the query is σ(slope · score).
    """

    def __init__(self, config: EncoderJudgeConfig) -> None:
        from anmi_ray.models import classifier
        from anmi_ray.models.bi_encoder import BiEncoder
        from anmi_ray.models.likelihood import QueryLikelihood

        self.slope = config.slope
        self.at_once = sys.maxsize  # a document of several queries is read once
        self._score: Callable[[list[str], list[str]], Reals]
        use = _resources(config)
        model = source(config), config.max_tokens, config.dtype, use
        if config.form == "likelihood":
            self._score = QueryLikelihood(*model).score
        else:
            scorer = classifier.load_scorer(*model)
            self._score = functools.partial(classifier.score, scorer, use=use)
            if not isinstance(scorer, BiEncoder):
                self.at_once = 8192  # enough documents to fill batches

    def answers(self, texts: Texts, which: Rows) -> Answered:
        """Yield answers in order; each (query, document) of a slice is scored once."""
        if not len(which):
            return
        asked = texts.questions
        sides = np.stack([side[which] for side in (asked.first, asked.second)[: asked.documents]], axis=1)
        once, row = np.unique(asked.query[which, None] * texts.documents + sides, return_inverse=True)
        queries, documents = np.divmod(once, texts.documents)
        shown = [texts.query(q) for q in queries.tolist()], [texts.document(d) for d in documents.tolist()]
        scores = self._score(*shown)[row.reshape(sides.shape)]
        for part in _parts(np.arange(len(which))):
            yield which[part], self._logs(scores[part])

    def _logs(self, scores: Reals) -> Logs:
        """Return log probabilities for scores float64[N, 2], or [N, 1] for single documents against a score of 0."""
        finite = np.where(np.isfinite(scores), scores, np.nan)
        other = finite[:, 1] if finite.shape[1] == 2 else 0.0
        difference = self.slope * (finite[:, 0] - other)
        return {"log_first": log_sigmoid(difference), "log_second": log_sigmoid(-difference)}


class Pairwise:
    """A model that reads the query and both documents; its labels' probabilities are the preference."""

    at_once = 1024

    def __init__(self, config: EncoderJudgeConfig, form: DistilledForm | None) -> None:
        from anmi_ray.models.classifier import Classifier

        self.form = form
        self.model = Classifier(source(config), (form or config).max_tokens, config.dtype, _resources(config))
        self.columns = _label_columns(config, self.model.labels) if self.form is None else {}
        texts = (TEXT, TEXT_PAIR) if form is None else (form.text, form.text_pair)
        self.truncator = Truncator(self.model, *texts)

    def answers(self, texts: Texts, which: Rows) -> Answered:
        """Yield answers, longest inputs first, so that inputs of a batch have similar lengths."""
        asked = texts.questions
        for start in range(0, len(which), self.at_once):
            rows = which[start : start + self.at_once]
            query = {row: texts.query(row) for row in np.unique(asked.query[rows]).tolist()}
            sides = asked.first[rows], asked.second[rows]
            document = {row: texts.document(row) for row in np.unique(sides).tolist()}
            columns = (column.tolist() for column in (asked.query[rows], *sides))
            coded = self.truncator.inputs(
                [(query[q], document[a], document[b]) for q, a, b in zip(*columns, strict=True)]
            )
            longest = np.argsort([-len(ids) for ids in coded["input_ids"]], kind="stable")
            for part in _parts(longest):
                some = {name: [values[i] for i in part] for name, values in coded.items()}
                yield rows[part], self._logs(self.model.logits_of(some))

    def _logs(self, logits: Reals) -> Logs:
        """Return log probabilities of logits float64[N, L]."""
        finite = np.where(np.isfinite(logits).all(axis=1, keepdims=True), logits, np.nan)
        if self.form is not None:
            return log_probabilities(finite, self.form.target)
        logs = log_softmax(finite, axis=1)
        return {name: logs[:, column] for name, column in self.columns.items()}


def _label_columns(config: EncoderJudgeConfig, labels: tuple[str, ...]) -> dict[str, int]:
    """Map columns to logits. Raises ConfigError if the model's labels are not those of the settings."""
    named = {"log_first": config.first_label, "log_second": config.second_label, "log_tie": config.tie_label}
    wanted = {column: label for column, label in named.items() if label is not None}
    place = f"model {config.model}"
    listed = ", ".join(labels)
    if unknown := [label for label in wanted.values() if label not in labels]:
        remedy = "name them in first_label, second_label and tie_label"
        raise ConfigError(f"has no label {', '.join(unknown)}; its labels are {listed}", place, remedy)
    if len(labels) != len(wanted):
        unread = ", ".join(label for label in labels if label not in wanted.values())
        remedy = "name every label: set tie_label, or give a model with two or three labels"
        raise ConfigError(f"has {len(labels)} labels ({listed}), and the settings leave out {unread}", place, remedy)
    return {column: labels.index(label) for column, label in wanted.items()}


def _resources(config: EncoderJudgeConfig) -> Resources:
    from anmi_ray.models.classifier import Resources
    from anmi_ray.models.reranker import resolve_device

    device = resolve_device("cuda" if config.gpus else "cpu", "set gpus: 0")
    return Resources(device, threads=1)


def _parts(rows: Rows) -> Iterator[Rows]:
    for start in range(0, len(rows), AT_ONCE):
        yield rows[start : start + AT_ONCE]


def _columns(logs: Logs) -> dict[str, object]:
    """Return Answer columns; rows with non-finite values are failures."""
    failed = np.any([~np.isfinite(value) for value in logs.values()], axis=0)
    columns: dict[str, object] = {name: pa.array(value, mask=failed) for name, value in logs.items()}
    return columns | {"error": pa.array(np.full(len(failed), NOT_FINITE, object), pa.string(), mask=~failed)}


JUDGE = EncoderJudge
