"""The judge that is a sequence classification model: a reranker that scores documents, or a model that reads a pair.

A reranker scores every (query, document) once and answers all questions about it from that score. A pairwise model
reads the query and both documents at once; texts that do not fit are cut to one length, the longest first, so that
neither document is shown more of than the other.
Letters: N questions, L labels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.config.base import whole
from anmi_ray.config.encoder_judge import EncoderJudgeConfig
from anmi_ray.errors import ConfigError
from anmi_ray.judging.engine import HandOver, Slices, answer_rows
from anmi_ray.judging.questions import Rows, TextQuestions
from anmi_ray.judging.spend import Spend
from anmi_ray.judging.tokens import TokenizerTokens
from anmi_ray.models import loading
from anmi_ray.scale import log_sigmoid

if TYPE_CHECKING:
    from anmi_ray.models.classifier import Classifier, Resources

EACH = 256  # questions that are answered at once: no more are lost when the process dies
AHEAD = 1024  # documents that a reranker scores at once: enough of like length to fill batches
NOT_FINITE = "the model's score is not finite"
Reals = NDArray[np.float64]
Logs = dict[str, Reals]  # log_first, log_second and, of models with ties, log_tie: float64[N], NaN where not finite
Answered = Iterator[tuple[Rows, Logs]]
Shown = tuple[str, str, str]  # query, first document, second document
Ends = tuple[str, list[int]]  # a text, and where in it every token ends


def source(config: EncoderJudgeConfig) -> loading.ModelSource:
    """Where the model's weights are, by content or commit. ConfigError: no such model, or a folder's revision."""
    if Path(config.model).expanduser().is_dir():
        if config.revision is not None:
            remedy = "leave judge.revision out: what a folder holds is its revision"
            raise ConfigError("a folder has no revisions", f"model {config.model}", remedy)
        return loading.resolve(config.model, config.trust_remote_code)
    return _published(config.model, config.revision, config.trust_remote_code)


@functools.lru_cache(maxsize=64)
def _published(model: str, revision: str | None, trust: bool) -> loading.ModelSource:
    """A model of the hub or of a package: what it is does not change while a process lives."""
    return loading.resolve(f"{model}@{revision}" if revision else model, trust)


def identity(config: EncoderJudgeConfig) -> dict[str, object]:
    """All that can change an answer; a folder's model is its content, wherever it lies."""
    found, shown = source(config), whole(config)
    content: dict[str, object] = {name: shown[name] for name in shown if name not in ("name", "model", "revision")}
    return content | {"weights": found.revision if found.is_local else f"{found.path_or_id}@{found.revision}"}


class EncoderEngine:
    """Loads the model where it is built. Raises ConfigError where it cannot be, or does not fit the form."""

    def __init__(self, config: EncoderJudgeConfig) -> None:
        self.form = Pointwise(config) if config.form == "pointwise" else Pairwise(config)
        self.at_once, self.spend = self.form.at_once, Spend()

    def ask(self, questions: TextQuestions, slices: Slices, hand_over: HandOver) -> None:
        """One slice after another; at most EACH answers are handed over at once. JudgeError: no memory for a batch."""
        texts = Texts(questions)
        for which in slices:
            empty = texts.empty(which)
            for name in ("query", "document"):
                for rows in _parts(which[empty == name]):
                    hand_over(answer_rows(questions, rows, error=[f"empty {name}"] * len(rows)))
            for rows, logs in self.form.answers(texts, which[empty == ""]):
                self.spend += Spend(requests=len(rows))
                hand_over(answer_rows(questions, rows, attempts=[1] * len(rows), **_columns(logs)))


class Texts:
    """The texts of questions as models read them, and what a reranker found: one query may fill several slices.

    known: (keys int64[K], sorted, scores float64[K]) of (query, document), a key being query row · documents + document
    row; scores of queries before those of the last slice are forgotten.
    """

    def __init__(self, questions: TextQuestions) -> None:
        from anmi_ray.models.pairs import document_text

        self.questions, self.documents, self._joined = questions, questions.texts.num_rows, document_text
        self.known: tuple[Rows, Reals] = np.zeros(0, np.int64), np.zeros(0)

    def query(self, row: int) -> str:
        """A query's text."""
        return self.questions.queries["text"][row].as_py().strip()

    def document(self, row: int) -> str:
        """A document's title and body."""
        texts = self.questions.texts
        return self._joined(texts["title"][row].as_py().strip(), texts["text"][row].as_py().strip())

    def empty(self, which: Rows) -> NDArray[np.str_]:
        """Of each question: "query" or "document" where that text is empty, else ""."""
        asked, found = self.questions, np.full(len(which), "", dtype="<U8")
        sides: tuple[tuple[str, Callable[[int], str], Rows], ...] = (
            ("document", self.document, asked.first[which]),
            ("document", self.document, asked.second[which]),
            ("query", self.query, asked.query[which]),
        )
        for kind, text, rows in sides:
            bare = [row for row in np.unique(rows).tolist() if not text(row)]
            found[np.isin(rows, bare)] = kind
        return found

    def remember(self, keys: Rows, scores: Reals) -> None:
        """Scores of a slice's distinct keys int64[N], sorted."""
        old, held = self.known
        kept = (old >= keys[0] // self.documents * self.documents) & ~np.isin(old, keys) if len(keys) else old < 0
        keys, scores = np.concatenate([keys, old[kept]]), np.concatenate([scores, held[kept]])
        order = np.argsort(keys)
        self.known = keys[order], scores[order]

    def recall(self, keys: Rows) -> Reals:
        """Scores float64[N] that are remembered, NaN where there is none."""
        known, scores = self.known
        if not len(known):
            return np.full(len(keys), np.nan)
        at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        return np.where(known[at] == keys, scores[at], np.nan)


class Pointwise:
    """A reranker: the preference is σ(slope · (score of the first − score of the second))."""

    at_once = 8192  # questions about so many documents that batches are full

    def __init__(self, config: EncoderJudgeConfig) -> None:
        from anmi_ray.models import classifier

        self.slope, self.use = config.slope, _resources(config)
        self.scorer = classifier.load_scorer(source(config), config.max_tokens, config.dtype, self.use)
        self._score = classifier.score

    def answers(self, texts: Texts, which: Rows) -> Answered:
        """Questions in their order, as soon as both documents are scored; each (query, document) is scored once."""
        asked = texts.questions
        sides = np.stack([asked.first[which], asked.second[which]], axis=1)
        keys = asked.query[which, None] * texts.documents + sides
        once, place = np.unique(keys.ravel(), return_index=True)
        row, scores = np.searchsorted(once, keys), texts.recall(once)
        missing = np.flatnonzero(np.isnan(scores))
        missing = missing[np.argsort(place[missing], kind="stable")]  # in the order in which they are needed
        done = 0
        for start in range(0, max(len(missing), 1), AHEAD):
            now, later = missing[start : start + AHEAD], missing[start + AHEAD :]
            queries, documents = np.divmod(once[now], texts.documents)
            shown = [texts.query(q) for q in queries.tolist()], [texts.document(d) for d in documents.tolist()]
            scores[now] = self._score(self.scorer, *shown, self.use)
            stop = int(place[later[0]]) // 2 if len(later) else len(which)
            for part in _parts(np.arange(done, stop)):
                yield which[part], self._logs(scores[row[part]])
            done = stop
        texts.remember(once, scores)

    def _logs(self, scores: Reals) -> Logs:
        """Of scores float64[N, 2]."""
        finite = np.where(np.isfinite(scores), scores, np.nan)
        difference = self.slope * (finite[:, 0] - finite[:, 1])
        return {"log_first": log_sigmoid(difference), "log_second": log_sigmoid(-difference)}


class Pairwise:
    """A model that reads the query and both documents; the preference is read from its labels' probabilities."""

    at_once = 1024

    def __init__(self, config: EncoderJudgeConfig) -> None:
        from anmi_ray.models.classifier import Classifier

        self.model = Classifier(source(config), config.max_tokens, config.dtype, _resources(config))
        self.columns = _label_columns(config, self.model.labels)
        self.fitter = Fitter(self.model, config.text, config.text_pair)

    def answers(self, texts: Texts, which: Rows) -> Answered:
        """EACH questions after another."""
        asked = texts.questions
        for rows in _parts(which):
            columns = (column[rows].tolist() for column in (asked.query, asked.first, asked.second))
            shown = [(texts.query(q), texts.document(a), texts.document(b)) for q, a, b in zip(*columns, strict=True)]
            yield rows, self._logs(self.model.logits(*self.fitter(shown)))

    def _logs(self, logits: Reals) -> Logs:
        """Log probabilities of logits float64[N, L]."""
        finite = np.where(np.isfinite(logits).all(axis=1, keepdims=True), logits, np.nan)
        shifted = finite - finite.max(axis=1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return {name: logs[:, column] for name, column in self.columns.items()}


class Fitter:
    """Puts (query, first, second) into a model's texts, cut so that it reads no more than its `max_tokens`.

    The longest of the three are cut to one length in tokens, so the order of the documents changes no cut. Special
    tokens in a text are neutralised: a document cannot end itself and begin another. Raises ConfigError where
    `max_tokens` leaves no room.
    """

    def __init__(self, model: Classifier, text: str, text_pair: str | None) -> None:
        self.model, self.templates = model, (text, text_pair)
        self.tokens = TokenizerTokens(model.tokenizer)
        self._special = {*model.tokenizer.all_special_ids} - {cast(int, model.tokenizer.unk_token_id)}
        self._separator = str(model.tokenizer.sep_token or "\n")
        frame = int(self._lengths(*self._filled([("", "", "")]))[0])
        self.room = model.max_tokens - frame
        if self.room < 3:
            raise ConfigError(
                f"the model's texts take {frame} tokens without query and documents, of {model.max_tokens}",
                f"model {model.name}",
                "raise max_tokens, or shorten text and text_pair",
            )

    def __call__(self, shown: Sequence[Shown]) -> tuple[list[str], list[str] | None]:
        """The model's first texts and its second ones; None where it reads one."""
        ends = self._ends(list(dict.fromkeys(part for parts in shown for part in parts)))
        room = np.full(len(shown), self.room)
        while True:
            texts = self._filled(
                [_cut([ends[part] for part in parts], int(n)) for parts, n in zip(shown, room, strict=True)]
            )
            over = self._lengths(*texts) - self.model.max_tokens
            if (over <= 0).all():
                return texts
            room = np.maximum(room - np.maximum(over, 0), 0)  # put together, texts may have a token more than apart

    def _filled(self, shown: Sequence[Shown]) -> tuple[list[str], list[str] | None]:
        def fill(template: str) -> list[str]:
            return [template.format(query=q, first=a, second=b, sep=self._separator).strip() for q, a, b in shown]

        text, pair = self.templates
        return fill(text), None if pair is None else fill(pair)

    def _lengths(self, texts: list[str], pairs: list[str] | None) -> Rows:
        return np.array([len(ids) for ids in self.model.encode(texts, pairs)["input_ids"]], dtype=np.int64)

    def _ends(self, texts: list[str]) -> dict[str, Ends]:
        """Each text without special tokens, and where in it every token ends."""
        coded = self._offsets(texts)
        found = {}
        for text, ids, offsets in zip(texts, coded["input_ids"], coded["offset_mapping"], strict=True):
            clean = text
            if not self._special.isdisjoint(ids):
                clean = self.tokens.neutral(text)
                offsets = self._offsets([clean])["offset_mapping"][0]
            found[text] = clean, [end for _, end in offsets]
        return found

    def _offsets(self, texts: list[str]) -> Any:
        return self.model.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)


def _cut(parts: Sequence[Ends], room: int) -> Shown:
    """The three texts with at most `room` tokens together: the longest lose down to one length."""
    left, level = room, max(len(ends) for _, ends in parts)
    for number, length in enumerate(sorted(len(ends) for _, ends in parts)):
        share = left // (len(parts) - number)
        if length > share:
            level = share
            break
        left -= length
    query, first, second = (_beginning(text, ends, level) for text, ends in parts)
    return query, first, second


def _beginning(text: str, ends: list[int], tokens: int) -> str:
    if len(ends) <= tokens:
        return text
    return text[: ends[tokens - 1]] if tokens else ""


def _label_columns(config: EncoderJudgeConfig, labels: tuple[str, ...]) -> dict[str, int]:
    """Which logit is what. Raises ConfigError where the model's labels are not those of the settings."""
    named = {"log_first": config.first_label, "log_second": config.second_label, "log_tie": config.tie_label}
    wanted = {column: label for column, label in named.items() if label is not None}
    place, listed = f"model {config.model}", ", ".join(labels)
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

    return Resources("cuda" if config.gpus else "cpu", config.threads, config.batch_tokens)


def _parts(rows: Rows) -> Iterator[Rows]:
    for start in range(0, len(rows), EACH):
        yield rows[start : start + EACH]


def _columns(logs: Logs) -> dict[str, object]:
    """Answer columns; a row with a value that is not finite is a failure."""
    failed = np.any([~np.isfinite(value) for value in logs.values()], axis=0)
    columns: dict[str, object] = {name: pa.array(value, mask=failed) for name, value in logs.items()}
    return columns | {"error": pa.array(np.full(len(failed), NOT_FINITE, object), pa.string(), mask=~failed)}
