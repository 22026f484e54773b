"""Cost of asking language models: the tokens of a sample of real prompts, times calls, prices and rate limits.

The sample has a run's own pairs if they are chosen, else random documents of the collection. Nothing is sent and
nothing is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray import corpus
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import id_matrix, uniforms
from anmi_ray.core.records import COMPARISON, DOCUMENT, QUERY, TEXT_OF
from anmi_ray.core.scale import Z95
from anmi_ray.judging import kinds
from anmi_ray.judging.kinds import PromptJudge
from anmi_ray.judging.prompt_builder import PromptBuilder
from anmi_ray.judging.questions import direct_questions, text_questions
from anmi_ray.judging.spend import CallCost, CallTokens
from anmi_ray.pipeline.resolve import Resolved
from anmi_ray.pipeline.stages import INGEST, RETRIEVE
from anmi_ray.runtime.costs import BEGUN, COMPARED
from anmi_ray.runtime.stage import Stage
from anmi_ray.stages.ingest import config_of as ingest_config
from anmi_ray.store import Artifact, Store
from anmi_ray.store.answer_log import AnswerLog

QUERIES, PAIRS = 200, 2  # queries in the sample of prompts, and pairs of each
COUNTED = 50  # answers in the log from which on its server's own counts are used
LOOKED_UP = 500_000  # pairs up to which the answer log is searched for bought answers
_SHARDS = 4  # shards to sample documents from, if ingest is complete
_ANSWER = {"letters": 1, "scale": 4, "yes-no": 1, "queries": 50}  # tokens of an answer in the requested form


@dataclass(frozen=True)
class Prompts:
    """A sample of prompts.

    texts: query, first and second document of each.
    query: number of each one's query.
    source: what they are a sample of.
    """

    texts: list[tuple[str, str, str]]
    query: list[int]
    source: str


class CallCosts:
    """Costs of calls to language models, stage after stage."""

    def __init__(self, experiment: Experiment, resolved: Mapping[str, Resolved], store: Store) -> None:
        self._experiment = experiment
        self._resolved = resolved
        self._store = store
        # by group of settings and whether about single documents: prompts are as long in each round
        self._first: dict[tuple[str, bool], list[CallCost]] = {}
        self._all_rounds: dict[tuple[str, bool], list[CallCost]] = {}

    def __call__(self, stage: Stage, pairs: int) -> list[CallCost]:
        """Return the cost of each judge of a stage for `pairs` comparisons in all orders.

        The comparisons of a later round of a design include the earlier ones; if they exist, only what is missing of
        all of them costs.
        """
        experiment, kind = self._experiment, (stage.group, stage.direct)
        reads = stage.reads if self._resolved else {}
        made = {role: self._resolved[name].artifact(self._store) for role, name in reads.items()}
        if kind not in self._first:
            self._first[kind] = self._all_rounds[kind] = costs(experiment, stage, made, pairs)
            return self._first[kind]
        found: list[CallCost] = []
        sums: list[CallCost] = []
        judges = kinds.prompted(stage.panel(experiment))
        for judge, first, so_far in zip(judges, self._first[kind], self._all_rounds[kind], strict=True):
            calls, bought = stage.orders(experiment) * pairs, 0
            if BEGUN in reads and (of_all := _bought(experiment, stage, judge, made, pairs)):
                missing = of_all[0] - of_all[1]
                calls = max(calls, missing)
                bought = calls - missing
            found.append(priced(experiment, judge, first.tokens, calls, bought))
            all_bought = None if so_far.bought is None else so_far.bought + bought
            sums.append(priced(experiment, judge, first.tokens, so_far.calls + calls, all_bought))
        if BEGUN in stage.reads:
            self._all_rounds[kind] = sums
        return found

    @property
    def lines(self) -> Iterator[str]:
        """Describe every panel's calls, of all rounds of a design together."""
        for (_, direct), asked in self._all_rounds.items():
            if direct and asked:
                yield "about single documents:"
            for cost in asked:
                yield from cost.said()


def costs(experiment: Experiment, stage: Stage, made: Mapping[str, Artifact], pairs: int) -> list[CallCost]:
    """Return the cost of each judge of a stage for `pairs` comparisons in all orders.

    made: by role, what the stage reads, complete or not; unused if `plan` describes the collection.
    """
    judges = kinds.prompted(stage.panel(experiment))
    if experiment.plan.documents is not None:
        calls = stage.orders(experiment) * pairs
        return [priced(experiment, judge, _stated(experiment, judge), calls, 0) for judge in judges]
    if not judges:
        return []
    prompts = sample(experiment, made)
    found: list[CallCost] = []
    for judge in judges:
        log = AnswerLog(made[COMPARED].store, judge.identity)
        tokens = _by_server(log) or count(judge.prompt_builder(), prompts, judge.longest_answer)
        calls, bought = stage.orders(experiment) * pairs, 0
        if log.buckets():
            calls, bought = _bought(experiment, stage, judge, made, pairs) or (calls, None)
        found.append(priced(experiment, judge, tokens, calls, bought))
    return found


def _bought(
    experiment: Experiment, stage: Stage, judge: PromptJudge, made: Mapping[str, Artifact], pairs: int
) -> tuple[int, int] | None:
    """Return the run's questions and those with a final answer; None without pairs, or if they are too many."""
    ingest = made[INGEST].manifest()
    if ingest is None or made[COMPARED].manifest() is None or pairs > LOOKED_UP:
        return None
    log = AnswerLog(made[COMPARED].store, judge.identity)
    in_orders = partial(text_questions, orders=stage.panel(experiment).orders)
    questions_of = direct_questions if stage.direct else in_orders
    asked = final = 0
    for bucket in range(ingest["buckets"]):
        questions = questions_of(
            made[COMPARED].read_part("comparisons", bucket, COMPARISON),
            made[INGEST].read_part("queries", bucket, QUERY),
            made[RETRIEVE].read_part("texts", bucket, TEXT_OF),
        )
        asked += len(questions.ids)
        final += int(log.read(bucket).final(questions.ids).sum())
    return asked, final


def sample(experiment: Experiment, made: Mapping[str, Artifact]) -> Prompts:
    """Return prompts of the run's own pairs, else of random documents.

    For questions about single documents, the first round's pairs are used: their length is about the same.
    """
    ingest = made[INGEST].manifest()
    compare = made.get("first", made[COMPARED])
    if ingest is not None and compare.manifest() is not None:
        return _of_pairs({**made, COMPARED: compare}, ingest["buckets"])
    return _of_documents(experiment, made[INGEST])


def _of_pairs(made: Mapping[str, Artifact], buckets: int) -> Prompts:
    """Take the first buckets: each is a hash sample of queries."""
    texts: list[tuple[str, str, str]] = []
    query: list[int] = []
    seen = 0
    for bucket in range(buckets):
        pairs = made[COMPARED].read_part("comparisons", bucket, COMPARISON)
        chosen = pc.unique(pairs["query_id"]).sort().slice(0, QUERIES - seen)
        pairs = _few(pairs.filter(pc.is_in(pairs["query_id"], value_set=chosen)))
        parts = ("queries", QUERY, made[INGEST]), ("texts", TEXT_OF, made[RETRIEVE])
        questions = text_questions(pairs, *(one.read_part(part, bucket, record) for part, record, one in parts))
        for q in questions.of_comparison[:, 0].tolist():
            rows = questions.texts.take(pa.array([questions.first[q], questions.second[q]])).to_pylist()
            first, second = (_shown(row["title"], row["text"]) for row in rows)
            texts.append((questions.queries["text"][int(questions.query[q])].as_py(), first, second))
            query.append((bucket << 32) + int(questions.query[q]))
        seen += len(chosen)
        if seen >= QUERIES:
            break
    return Prompts(texts, query, f"the pairs of {len(set(query)):,} queries")


def _few(pairs: pa.Table) -> pa.Table:
    """Return PAIRS comparisons of every query, those of smallest hash."""
    if not pairs.num_rows:
        return pairs
    chance = uniforms(id_matrix(pairs["comparison_id"]), "plan")
    query = pc.dictionary_encode(pairs["query_id"].combine_chunks()).indices.to_numpy()
    order = np.lexsort((chance, query))
    turn = np.arange(len(order)) - np.searchsorted(query[order], query[order])
    return pairs.take(pa.array(order[turn < PAIRS]))


def _of_documents(experiment: Experiment, ingest: Artifact) -> Prompts:
    """Return random documents of the collection, two a prompt, from `ingest` if it is complete."""
    manifest = ingest.manifest()
    if manifest is not None:
        step = max(1, manifest["shards"] // _SHARDS)
        shards = range(0, manifest["shards"], step)
        documents = _smallest((ingest.read_part("documents", shard, DOCUMENT) for shard in shards), "doc_id")
        parts = [ingest.read_part("queries", bucket, QUERY) for bucket in range(manifest["buckets"])]
        queries = pa.concat_tables(parts)
    else:
        reader = corpus.read(ingest_config(experiment))
        documents = _smallest(reader.documents(), "doc_id")
        queries = reader.queries()
    queries = _smallest([queries.filter(pc.equal(queries["split"], "train"))], "query_id").slice(0, QUERIES)
    shown = [_shown(row["title"], row["text"]) for row in documents.select(["title", "text"]).to_pylist()]
    asked = queries["text"].to_pylist()
    pairs = range(len(shown) // 2 if asked else 0)
    texts = [(asked[k % len(asked)], shown[2 * k], shown[2 * k + 1]) for k in pairs]
    return Prompts(texts, list(pairs), f"{len(shown):,} random documents (retrieved ones may be longer)")


def _smallest(tables: Iterator[pa.Table] | list[pa.Table], key: str) -> pa.Table:
    """Return the 2 · QUERIES rows with the smallest hash of their id, in its order."""
    kept: pa.Table | None = None
    for table in tables:
        rows = table if kept is None else pa.concat_tables([kept, table])
        order = np.argsort(uniforms(id_matrix(rows[key]), "plan"), kind="stable")[: 2 * QUERIES]
        kept = rows.take(pa.array(order))
    assert kept is not None
    return kept


def _shown(title: str, text: str) -> str:
    """Return a document as prompts show it."""
    return f"{title}\n{text}".strip()


def _stated(experiment: Experiment, judge: PromptJudge) -> CallTokens:
    """Return the tokens that the settings give for a collection that is not here. Raises ConfigError without them."""
    tokens = experiment.plan.prompt_tokens
    if tokens is None:
        raise ConfigError(
            f"the tokens of {judge.name}'s prompts about a collection that is not here are not known",
            "plan.prompt_tokens",
            "say how many a prompt has on average: query, both documents and the template",
        )
    return CallTokens(
        float(tokens), 0.0, float(min(judge.longest_answer, _ANSWER["scale"])), "as plan.prompt_tokens says"
    )


def priced(experiment: Experiment, judge: PromptJudge, tokens: CallTokens, calls: int, bought: int | None) -> CallCost:
    """Return the cost of a judge's calls, except those bought already."""
    missing = calls - (bought or 0)
    price = judge.price(missing, missing * tokens.prompt, missing * tokens.answer, experiment.plan)
    return CallCost(judge=judge.name, calls=calls, bought=bought, tokens=tokens, **vars(price))


def count(builder: PromptBuilder, prompts: Prompts, longest: float = math.inf) -> CallTokens:
    """Count the tokens of sampled prompts, by the judge's own tokenizer or an estimate from bytes."""
    counts = [
        builder.tokens.count_tokens(
            builder.messages(builder.query(query), builder.document(first), builder.document(second))
        )
        for query, first, second in prompts.texts
    ]
    answer = float(min(longest, _ANSWER[builder.template.form]))
    if not counts:  # no train query: nothing is asked
        return CallTokens(0.0, 0.0, answer, "no train query")
    _, query = np.unique(prompts.query, return_inverse=True)
    total, size, mean = np.bincount(query, counts), np.bincount(query), float(np.mean(counts))
    spread = math.sqrt(float(np.square(total - mean * size).sum()) * len(size) / max(len(size) - 1, 1))
    how = "counted by its own tokenizer" if builder.tokens.exact else "estimated from bytes, on the long side,"
    return CallTokens(mean, Z95 * spread / len(counts), answer, f"{how} over {prompts.source}")


def _by_server(log: AnswerLog) -> CallTokens | None:
    """Return what a judge's server counted for questions in the log, with billed retries and failures; None if few."""
    known: list[pa.Table] = []
    for bucket in log.buckets():
        table = log.read(bucket).table
        known.append(table.filter(pc.greater(table["prompt_tokens"], 0)))
        if sum(table.num_rows for table in known) >= 20 * COUNTED:
            break
    rows = sum(table.num_rows for table in known)
    if rows < COUNTED:
        return None
    prompt, answer = (
        np.concatenate([table[name].to_numpy() for table in known]) for name in ("prompt_tokens", "answer_tokens")
    )
    slack = Z95 * float(prompt.std(ddof=1)) / math.sqrt(rows)
    return CallTokens(
        float(prompt.mean()), slack, float(answer.mean()), f"as its server counted for {rows:,} bought questions"
    )
