"""Language models for `anmi queries`: a writer of queries, and judges that check whether documents answer them.

Both are asked in this process, through the answer log and the spend log of the root, so nothing is asked twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from anmi_ray.api import prompts
from anmi_ray.config.base import whole
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.identity import NOTHING, comparison_id, digest, doc_id, hash_sample, query_id, text_hash
from anmi_ray.core.records import COMPARISON, QUERY, TEXT_OF
from anmi_ray.judging import kinds
from anmi_ray.judging import writer as writing
from anmi_ray.judging.asking import LocalAsker, known
from anmi_ray.judging.budget import BudgetSession
from anmi_ray.judging.kinds.base import TextJudge
from anmi_ray.judging.preferences import of_answers
from anmi_ray.judging.prompt_builder import preview
from anmi_ray.judging.questions import TextQuestions, direct_questions
from anmi_ray.judging.spend import CallCost
from anmi_ray.queries.choose import DocumentSample, QueryCandidate, unanswered, written_queries
from anmi_ray.queries.kinds import READ
from anmi_ray.queries.words import LEAST_LEFT, cleaned, words
from anmi_ray.store import Store
from anmi_ray.store.answer_log import AnswerLog
from anmi_ray.store.spend_log import SpendLog

NOT_ASKED = "not asked: the budget is spent"
_EXAMPLES = 20
_EXAMPLE = 200  # characters
_COUNTED = 200  # prompts whose tokens are counted for an estimate of the cost
_ANSWER_TOKENS = 20.0  # per query, with its share of the syntax
_CONFIRMED = 0.5
Document = tuple[str, str, str]  # external id, title, text


class QueryWriting:
    """The questions to the query writer of an experiment. Call `offer` for all documents first."""

    def __init__(self, experiment: Experiment, number: int, stop_words: frozenset[str]) -> None:
        settings = experiment.queries
        if settings.writer is None:
            raise ConfigError("expected a language model", "queries.writer", "write {kind: api, endpoint: …}")
        self._experiment = experiment
        self._stop_words = stop_words
        self._wanted = settings.written, settings.each
        self._request = writing.wanted(settings.written, settings.each, _examples(experiment))
        self._writer = writing.writer(settings.writer)
        self._server = settings.writer.endpoint
        self._builder = self._writer.prompt_builder()
        self._sample = DocumentSample[Document](settings.documents or number, experiment.seed)

    def offer(self, source: str, title: str, text: str) -> None:
        """Add a document of the collection, unless it has fewer words than a masked document must have."""
        if self._sample.takes(source) and len(words(title)) + len(words(text[:READ])) >= LEAST_LEFT:
            self._sample.add(source, (source, title, text[:READ]))

    def candidates(self, say: Callable[[str], None]) -> list[tuple[QueryCandidate, str]]:
        """Return written queries with rejection reasons or "". Raise ConfigError, JudgeError, StoreError."""
        documents = {row[0]: row for row in self._sample.drawn()}
        questions = self._questions(list(documents.values()))
        asker = _asker(self._experiment, self._writer, [self._writer], f"queries {self._request}", say)
        held = asker.ask(questions)
        seed = self._experiment.seed
        answers = held.table.to_pylist()
        found: list[tuple[QueryCandidate, str]] = []
        sources = questions.texts["external_id"].take(pa.array(questions.first)).to_pylist()
        for source, row in zip(sources, held.rows(questions.ids).tolist(), strict=True):
            given = None if row < 0 else answers[row]
            said = "" if given is None else given["text"] or ""
            queries = writing.read_queries(said)
            if given is None:
                found.append((unanswered(source, "", seed), NOT_ASKED))
            elif given["error"]:
                found.append((unanswered(source, "", seed), f"failed: {given['error']}"))
            elif queries is None:
                found.append((unanswered(source, said, seed), writing.UNREADABLE))
            else:
                document = documents[source][1:]
                found += written_queries(queries, source, document, self._wanted, seed, self._stop_words)
        return found

    def preview(self) -> Iterator[str]:
        """Yield the number of calls, their cost, and the exact prompt about one document."""
        from anmi_ray.planning import prices

        documents = list(self._sample.drawn())
        if not documents:
            raise DataError("no document has enough words", "corpus", "check which columns or fields are the text")
        questions = self._questions(documents)
        store = Store(self._experiment.execution.root)
        bought = 0
        if store.exists("root.json"):  # else the root is unused, and reading would create it
            buckets = store.buckets(self._experiment.execution.buckets)
            held = known(AnswerLog(store, self._writer.identity), questions, buckets)
            bought = int(held.final(questions.ids).sum())
        texts = [(self._request, f"{title}\n{text}".strip(), "") for _, title, text in documents[:_COUNTED]]
        source = f"{len(texts):,} of the documents"
        tokens = prices.count(self._builder, prices.Prompts(texts, [*range(len(texts))], source))
        kinds_wanted, each = self._wanted
        answer = min(self._writer.longest_answer, _ANSWER_TOKENS * (1 + len(kinds_wanted) * each))
        cost: CallCost = prices.priced(
            self._experiment, self._writer, replace(tokens, answer=answer), len(questions.ids), bought
        )
        yield from cost.said()
        if self._experiment.queries.check:
            judges = ", ".join(judge.name for judge in checking(self._experiment))
            yield f"then {judges} check for every kept query whether its document answers it"
        yield f"document {documents[0][0]}"
        where = f"{self._server.model} at {self._server.base_url}"
        yield from prompts.said("writer", where, preview(self._builder, *texts[0]))

    def _questions(self, documents: Sequence[Document]) -> TextQuestions:
        request = (self._request, self._request)
        return _direct([(request, document) for document in documents])


def checking(experiment: Experiment) -> tuple[TextJudge, ...]:
    """Return the judges that check whether a document answers a query. Raise ConfigError if the panel has none."""
    judges = kinds.reading(experiment.judge.direct)
    if not judges:
        remedy = "add one of kind api to judge.judges, as in `anmi init --example own-documents`"
        raise ConfigError("expected a judge that reads texts", "queries.check", remedy)
    return judges


def unconfirmed(
    experiment: Experiment,
    queries: Sequence[QueryCandidate],
    documents: Mapping[str, tuple[str, str]],
    say: Callable[[str], None],
) -> dict[QueryCandidate, str]:
    """Return the queries that judges do not confirm, with reasons: the mean answer is no, or no judge answered.

    documents: title and text as written, by id. Raise ConfigError, JudgeError, StoreError.
    """
    judges = checking(experiment)
    by_id = {query.query_id: query for query in queries}
    asked = [((key, query.text), (query.source, *documents[query.source])) for key, query in by_id.items()]
    questions = _direct(asked)
    names = [questions.queries["external_id"][row].as_py() for row in questions.query.tolist()]
    said: list[np.ndarray] = []
    for judge in judges:
        held = _asker(experiment, judge, judges, "check of queries", say).ask(questions)
        p, _ = of_answers(held.table, judge.read_reply())
        said.append(np.append(p, np.nan)[held.rows(questions.ids)])
    answer_JN = np.stack(said)
    answered = np.isfinite(answer_JN)
    answers = answered.sum(axis=0)
    mean = np.where(answered, answer_JN, 0.0).sum(axis=0) / np.maximum(answers, 1)
    found: dict[QueryCandidate, str] = {}
    for name, yes, count in zip(names, mean.tolist(), answers.tolist(), strict=True):
        if not count:
            found[by_id[name]] = "no judge answered whether its document answers it"
        elif yes <= _CONFIRMED:
            found[by_id[name]] = "judges say that its document does not answer it"
    return found


def _asker(
    experiment: Experiment, judge: TextJudge, panel: Sequence[TextJudge], what: str, say: Callable[[str], None]
) -> LocalAsker:
    """Return the asker of a judge; its budget applies to the same `what` about the same collection."""
    store = Store(experiment.execution.root)
    asked = json.dumps([judge.identity for judge in panel] + [whole(experiment.corpus)], sort_keys=True)
    log = SpendLog(store, digest("campaign", what, asked).hex()[:16])
    budget = experiment.queries.budget if isinstance(judge, writing.QueryWriter) else experiment.judge.budget
    remedy = "see the prompt with anmi queries CONFIG --dry-run; the template and max_tokens must suit the model"
    return LocalAsker(
        judge,
        AnswerLog(store, judge.identity),
        BudgetSession(log, budget, judge, panel, remedy),
        store.buckets(experiment.execution.buckets),
        experiment.judge.retry_passes,
        experiment.judge.max_failures,
        say,
    )


def _direct(asked: Sequence[tuple[tuple[str, str], Document]]) -> TextQuestions:
    """Return direct questions about ((query's id, its text), document)."""
    texts_of_queries = dict(query for query, _ in asked)
    documents = {document[0]: document for _, document in asked}
    queries = QUERY.table(
        {
            "query_id": [query_id(key) for key in texts_of_queries],
            "external_id": list(texts_of_queries),
            "text": list(texts_of_queries.values()),
            "text_hash": [text_hash(text) for text in texts_of_queries.values()],
            "split": ["train"] * len(texts_of_queries),
        }
    )
    texts = TEXT_OF.table(
        {
            "doc_id": [doc_id(key) for key in documents],
            "external_id": list(documents),
            "text_hash": [text_hash(title, text) for _, title, text in documents.values()],
            "title": [title for _, title, _ in documents.values()],
            "text": [text for _, _, text in documents.values()],
        }
    )
    pairs = [(query_id(query[0]), doc_id(document[0])) for query, document in asked]
    comparisons = COMPARISON.table(
        {
            "comparison_id": [comparison_id(query, doc, NOTHING) for query, doc in pairs],
            "query_id": [query for query, _ in pairs],
            "doc_a": [doc for _, doc in pairs],
            "doc_b": [NOTHING] * len(pairs),
            "round": [0] * len(pairs),
            "design": ["confirmation"] * len(pairs),
        }
    )
    return direct_questions(comparisons, queries, texts)


def _examples(experiment: Experiment) -> list[str]:
    """Return up to twenty of the user's own queries, by hash. Raise ConfigError if the file has none."""
    path = experiment.queries.examples
    if path is None or "example" not in experiment.queries.written:
        return []
    remedy = "one query a line, or JSON lines with a field text or query"
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read: {error}", f"queries.examples {path}", remedy) from None
    found = {text for text in map(cleaned, _texts(lines, path)) if text}
    if not found:
        raise ConfigError("no query found", f"queries.examples {path}", remedy)
    by_hash = {text_hash(text): text for text in found}
    drawn = hash_sample(list(by_hash), _EXAMPLES, "examples", experiment.seed)
    return [by_hash[key][:_EXAMPLE] for key in sorted(drawn)]


def _texts(lines: Iterable[str], path: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if not line.startswith("{"):
            yield line
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = {}
        text = row.get("text", row.get("query"))
        if not isinstance(text, str):
            what = "expected a query, or a JSON object with a field text or query"
            raise ConfigError(what, f"queries.examples {path}, line {number}", "correct or remove the line")
        yield text
