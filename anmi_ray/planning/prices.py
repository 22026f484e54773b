"""What asking language models would cost: the tokens of a sample of real prompts, times calls, prices and rate limits.

The sample is of a run's own pairs if they are chosen, else of random documents of the collection. Nothing
is sent and nothing is written.
Letters: N prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
from anmi_ray.pipeline.stages import COMPARE, INGEST, RETRIEVE
from anmi_ray.runtime.stage import Stage
from anmi_ray.stages.ingest import config_of as ingest_config
from anmi_ray.store import Artifact
from anmi_ray.store.answer_log import AnswerLog

QUERIES, PAIRS = 200, 2  # so many queries' prompts are counted, and so many of each
COUNTED = 50  # answers of a judge from which its server's own counts are taken
LOOKED_UP = 500_000  # pairs up to which the answer log is searched for those that are bought
_SHARDS = 4  # of the documents that are looked at where the collection is not read anyway
_ANSWER = {"letters": 1, "scale": 4, "yes-no": 1, "queries": 50}  # tokens of an answer that is no more than asked for


@dataclass(frozen=True)
class Prompts:
    """Texts (query, first, second) of a sample of prompts, the query int[N] of each, and what they are a sample of."""

    texts: list[tuple[str, str, str]]
    query: list[int]
    source: str


def costs(
    experiment: Experiment, stage: Stage, made: Mapping[str, Artifact], pairs: int, before: Sequence[Artifact] = ()
) -> list[CallCost]:
    """Of every judge of a stage's panel that reads prompts, about `pairs` comparisons in all orders; in its order.

    made: by role, what the stage reads, complete or not; not looked at where `plan` says what the collection is.
    before: comparisons of a run that is refined, which are asked about beside these: another judge has answered none.
    """
    judges = kinds.prompted(stage.panel(experiment))
    if not judges:
        return []
    if experiment.plan.documents is not None:
        return [
            priced(experiment, judge, _stated(experiment, judge), stage.orders(experiment) * pairs, 0)
            for judge in judges
        ]
    prompts = sample(experiment, made)
    return [_cost(experiment, stage, judge, prompts, made, pairs, before) for judge in judges]


def of_pairs(
    experiment: Experiment,
    stage: Stage,
    known: Sequence[CallCost],
    pairs: int,
    made: Mapping[str, Artifact] | None = None,
) -> list[CallCost]:
    """What `pairs` other comparisons in all orders cost, at the tokens of `known` costs.

    None of them is bought, unless `made` is given: those of a later round of one design, whose comparisons hold those
    of the rounds before. Where they are there, what is missing of all of them counts.
    """
    judges = {judge.name: judge for judge in kinds.prompted(stage.panel(experiment))}
    found: list[CallCost] = []
    for cost in known:
        judge = judges[cost.judge]
        calls, bought = stage.orders(experiment) * pairs, 0
        if made and (of_all := _bought(experiment, stage, judge, made, pairs)):
            missing = of_all[0] - of_all[1]
            calls = max(calls, missing)
            bought = calls - missing
        found.append(priced(experiment, judge, cost.tokens, calls, bought))
    return found


def together(experiment: Experiment, stage: Stage, rounds: Sequence[Sequence[CallCost]]) -> list[CallCost]:
    """What all rounds of a design cost, judge by judge."""
    judges = {judge.name: judge for judge in kinds.prompted(stage.panel(experiment))}
    found: list[CallCost] = []
    for costs_ in zip(*rounds, strict=True):
        bought = [cost.bought for cost in costs_ if cost.bought is not None]
        all_bought = sum(bought) if len(bought) == len(costs_) else None
        calls = sum(cost.calls for cost in costs_)
        found.append(priced(experiment, judges[costs_[0].judge], costs_[0].tokens, calls, all_bought))
    return found


def sample(experiment: Experiment, made: Mapping[str, Artifact]) -> Prompts:
    """Prompts of the run's own pairs, else of random documents.

    Of single documents those of the first round's pairs are taken: they are of about the same length.
    """
    ingest = made[INGEST].manifest()
    compare = made.get("first", made[COMPARE])
    if ingest is not None and compare.manifest() is not None:
        return _of_pairs({**made, COMPARE: compare}, ingest["buckets"])
    return _of_documents(experiment, made[INGEST])


def _of_pairs(made: Mapping[str, Artifact], buckets: int) -> Prompts:
    """A bucket is a hash sample of queries, so the first ones will do."""
    texts: list[tuple[str, str, str]] = []
    query: list[int] = []
    seen = 0
    for bucket in range(buckets):
        pairs = made[COMPARE].read_part("comparisons", bucket, COMPARISON)
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
    """PAIRS comparisons of every query, those of smallest hash."""
    if not pairs.num_rows:
        return pairs
    chance = uniforms(id_matrix(pairs["comparison_id"]), "plan")
    query = pc.dictionary_encode(pairs["query_id"].combine_chunks()).indices.to_numpy()
    order = np.lexsort((chance, query))
    turn = np.arange(len(order)) - np.searchsorted(query[order], query[order])
    return pairs.take(pa.array(order[turn < PAIRS]))


def _of_documents(experiment: Experiment, ingest: Artifact) -> Prompts:
    """Random documents of the collection, two a prompt, from `ingest` where it is complete."""
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
    """The 2 · QUERIES rows with the smallest hash of their id, in its order; all tables are read, a few rows kept."""
    kept: pa.Table | None = None
    for table in tables:
        rows = table if kept is None else pa.concat_tables([kept, table])
        order = np.argsort(uniforms(id_matrix(rows[key]), "plan"), kind="stable")[: 2 * QUERIES]
        kept = rows.take(pa.array(order))
    assert kept is not None
    return kept


def _shown(title: str, text: str) -> str:
    """A document as prompts show it."""
    return f"{title}\n{text}".strip()


def _stated(experiment: Experiment, judge: PromptJudge) -> CallTokens:
    """What the settings say of a collection that is not here. Raises ConfigError where they say nothing."""
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


def _cost(
    experiment: Experiment,
    stage: Stage,
    judge: PromptJudge,
    prompts: Prompts,
    made: Mapping[str, Artifact],
    pairs: int,
    before: Sequence[Artifact],
) -> CallCost:
    log = AnswerLog(made[COMPARE].store, judge.identity)
    tokens = _by_server(log) or count(judge.prompt_builder(), prompts, judge.longest_answer)
    return priced(
        experiment, judge, tokens, *_asked(experiment, stage, judge, made, pairs, before, bool(log.buckets()))
    )


def _asked(
    experiment: Experiment,
    stage: Stage,
    judge: PromptJudge,
    made: Mapping[str, Artifact],
    pairs: int,
    before: Sequence[Artifact],
    known: bool,
) -> tuple[int, int | None]:
    """(calls, those bought; None where they are too many to look up) of a judge; known: it has answers in the log.

    Of a round that adds to comparisons `before` nobody has answered what it adds, before it has chosen.
    """
    orders = stage.orders(experiment)
    compared = {made[COMPARE]: pairs}
    added = 0
    if before:
        is_chosen = made[COMPARE].manifest() is not None  # then it holds those before
        compared = {one: _pairs_of(one, made[INGEST]) for one in ([made[COMPARE]] if is_chosen else before)}
        added = 0 if is_chosen else orders * pairs
    if not known:
        return added + orders * sum(compared.values()), 0
    found = [_bought(experiment, stage, judge, {**made, COMPARE: one}, number) for one, number in compared.items()]
    counted = [one for one in found if one is not None]
    if len(counted) < len(found):
        return orders * pairs, None
    return added + sum(asked for asked, _ in counted), sum(final for _, final in counted)


def _pairs_of(compared: Artifact, ingest: Artifact) -> int:
    """How many comparisons an artifact holds; one small column of them is read."""
    buckets = (ingest.manifest() or {"buckets": 0})["buckets"]
    return sum(compared.read_part("comparisons", one, COMPARISON, ["round"]).num_rows for one in range(buckets))


def priced(experiment: Experiment, judge: PromptJudge, tokens: CallTokens, calls: int, bought: int | None) -> CallCost:
    missing = calls - (bought or 0)
    price = judge.price(missing, missing * tokens.prompt, missing * tokens.answer, experiment.plan)
    return CallCost(judge=judge.name, calls=calls, bought=bought, tokens=tokens, **vars(price))


def count(builder: PromptBuilder, prompts: Prompts, longest: float = math.inf) -> CallTokens:
    """The tokens of sampled prompts, by the judge's own tokenizer or the estimate from bytes."""
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
    """What a judge's server counted for questions that are in the log, retries and failures that it billed included.

    None where there are few.
    """
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


def _bought(
    experiment: Experiment, stage: Stage, judge: PromptJudge, made: Mapping[str, Artifact], pairs: int
) -> tuple[int, int] | None:
    """(questions of the run, those with a final answer); None where the pairs are not there, or too many to look up."""
    ingest = made[INGEST].manifest()
    if ingest is None or made[COMPARE].manifest() is None or pairs > LOOKED_UP:
        return None
    log = AnswerLog(made[COMPARE].store, judge.identity)
    questions_of = direct_questions if stage.direct else partial(text_questions, orders=stage.panel(experiment).orders)
    asked = final = 0
    for bucket in range(ingest["buckets"]):
        questions = questions_of(
            made[COMPARE].read_part("comparisons", bucket, COMPARISON),
            made[INGEST].read_part("queries", bucket, QUERY),
            made[RETRIEVE].read_part("texts", bucket, TEXT_OF),
        )
        asked += len(questions.ids)
        final += int(log.read(bucket).final(questions.ids).sum())
    return asked, final
