"""Questions to reading judges: each once, in the order of asking, in chunks of whole queries; and their answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray import judging
from anmi_ray.config.judge import JudgeConfig, NullJudgeConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import comparison_id, digest, doc_id, query_id, text_hash
from anmi_ray.core.records import ANSWER, COMPARISON, JUDGMENT, QUERY, TEXT_OF
from anmi_ray.judging import kinds
from anmi_ray.judging.kinds.base import answer_rows
from anmi_ray.judging.kinds.null import NullEngine
from anmi_ray.judging.preferences import answer_source, of_answers
from anmi_ray.judging.questions import TextQuestions, text_questions
from anmi_ray.store.answer_log import hold, question_ids

NOT_ASKED = "not asked"


def world(
    pairs: list[tuple[int, int, int]],
    same_text: dict[int, int] | None = None,
    orders: Literal["both", "one"] = "both",
) -> TextQuestions:
    """Questions of (query, document, document) triples; `same_text` gives a document the text of another."""
    shared = same_text or {}
    documents = sorted({d for _, *docs in pairs for d in docs})
    queries = sorted({q for q, *_ in pairs})
    texts = [f"text {shared.get(d, d)}" for d in documents]
    rows = []
    for q, *two in pairs:
        a, b = sorted(doc_id(str(d)) for d in two)
        rows.append((comparison_id(query_id(str(q)), a, b), query_id(str(q)), a, b, 0, "test"))
    columns = list(zip(*rows, strict=True)) or [[]] * 6
    return text_questions(
        COMPARISON.table(dict(zip(COMPARISON.schema.names, columns, strict=True))),
        QUERY.table(
            {
                "query_id": [query_id(str(q)) for q in queries],
                "external_id": [str(q) for q in queries],
                "text": [f"query {q}" for q in queries],
                "text_hash": [text_hash(f"query {q}") for q in queries],
                "split": ["train"] * len(queries),
            }
        ),
        TEXT_OF.table(
            {
                "doc_id": [doc_id(str(d)) for d in documents],
                "external_id": [str(d) for d in documents],
                "text_hash": [text_hash("", text) for text in texts],
                "title": [""] * len(documents),
                "text": texts,
            }
        ),
        orders,
    )


PAIRS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 6)).filter(lambda t: t[1] != t[2]),
    max_size=25,
    unique_by=lambda t: (t[0], *sorted(t[1:])),
)


@settings(max_examples=60)
@given(PAIRS, st.integers(1, 12))
def test_every_pair_is_asked_in_both_orders_once(pairs: list[tuple[int, int, int]], size: int) -> None:
    asked = world(pairs)
    assert asked.of_comparison.shape == (len(pairs), 2)
    assert sorted(asked.of_comparison.ravel().tolist()) == list(range(2 * len(pairs)))
    ab, ba = asked.of_comparison.T
    assert (asked.first[ab] == asked.second[ba]).all()
    assert (asked.second[ab] == asked.first[ba]).all()
    assert (asked.query[ab] == asked.query[ba]).all()
    triples = list(zip(asked.query.tolist(), asked.first.tolist(), asked.second.tolist(), strict=True))
    assert triples == sorted(triples)  # prompts that begin alike are neighbours
    chunks = asked.chunks(size)
    assert [i for start, stop in chunks for i in range(start, stop)] == list(range(len(triples)))
    for start, stop in chunks:
        inside = set(asked.query[start:stop].tolist())
        assert inside.isdisjoint([*asked.query[:start].tolist(), *asked.query[stop:].tolist()])
        assert stop - start <= size or len(inside) == 1


@settings(max_examples=60)
@given(PAIRS)
def test_in_one_order_every_pair_is_a_question_of_its_own_and_one_of_both(pairs: list[tuple[int, int, int]]) -> None:
    both, one = world(pairs), world(pairs, orders="one")
    assert len(one.query) == len(pairs)
    asked = one.of_comparison >= 0
    assert (asked.sum(axis=1) == 1).all()
    assert sorted(one.of_comparison[asked].tolist()) == list(range(len(pairs)))
    mine, theirs = one.of_comparison[asked], both.of_comparison[asked]
    for name in ("query", "first", "second", "ids"):
        np.testing.assert_array_equal(getattr(one, name)[mine], getattr(both, name)[theirs])


def test_ab_is_the_document_with_the_smaller_id_first() -> None:
    asked = world([(0, 1, 2)])
    a = min(doc_id("1"), doc_id("2"))
    first = asked.texts["doc_id"].to_pylist()[asked.first[asked.of_comparison[0, 0]]]
    assert first == a


def test_equal_texts_are_one_question() -> None:
    asked = world([(0, 1, 2), (0, 1, 3), (0, 4, 5)], same_text={3: 2})
    assert len(asked.query) == 4
    hashes = pa.table(asked.hashes(np.arange(4)))
    assert (question_ids(hashes) == asked.ids).all()


def test_a_missing_text_is_named() -> None:
    asked = world([(0, 1, 2)])
    comparisons = COMPARISON.table(
        {
            "comparison_id": [digest("c", 0)],
            "query_id": asked.queries["query_id"],
            "doc_a": [bytes(16)],
            "doc_b": [doc_id("2")],
            "round": [0],
            "design": ["test"],
        }
    )
    with pytest.raises(DataError, match="0 queries and 1 compared documents"):
        text_questions(comparisons, asked.queries, asked.texts)


def read(words: str) -> float | str:
    return {"first": 1.0, "second": 0.0, "tie": 0.5}.get(words, "not understood")


def test_answers_are_read_whatever_their_form() -> None:
    asked = world([(0, 1, 2), (0, 1, 3), (0, 2, 3)])
    logs = {"log_first": [math.log(0.6), None, None, None, -800.0, None]}
    logs |= {"log_second": [math.log(0.2), None, None, None, -801.0, None], "log_tie": [math.log(0.2)] + [None] * 5}
    words = [None, "first", "gibberish", None, None, "tie"]
    rows = answer_rows(asked, np.arange(6), text=words, error=[None, None, None, "timeout", None, None], **logs)
    p, error = of_answers(ANSWER.check(rows, "here"), read)
    assert error.to_pylist() == ["no words", None, "not understood", "timeout", "no words", None]
    np.testing.assert_allclose(p, [np.nan, 1.0, np.nan, np.nan, np.nan, 0.5])
    p, error = of_answers(rows, None)
    assert error.to_pylist() == [None, "no probabilities", "no probabilities", "timeout", None, "no probabilities"]
    np.testing.assert_allclose(p, [0.7, np.nan, np.nan, np.nan, 1 / (1 + math.exp(-1)), np.nan])


@settings(max_examples=30)
@given(PAIRS.filter(len), st.data())
def test_p_a_is_about_doc_a_whatever_the_order(pairs: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Some questions never asked: their judgments are failures, all others what was bought."""
    asked = world(pairs)
    known = np.array(data.draw(st.lists(st.integers(0, len(asked.query) - 1), unique=True)), dtype=np.int64)
    got: list[pa.Table] = []
    NullEngine().ask(asked, iter([known]), got.append)
    held = hold(got)
    answer = answer_source(asked, held.table, held.rows(asked.ids), None, NOT_ASKED)
    for column, order in enumerate(("ab", "ba")):
        found = answer(None, order)  # type: ignore[arg-type]
        for comparison, question in enumerate(asked.of_comparison[:, column]):
            if question in known:
                log = held.table.slice(int(held.rows(asked.ids[[question]])[0]), 1).to_pylist()[0]["log_first"]
                p_first = math.exp(log)
                expected = p_first if order == "ab" else 1.0 - p_first
                assert found.p_a[comparison] == pytest.approx(expected)
                assert found.failure[comparison] == -1
            else:
                assert found.errors[found.failure[comparison]] == NOT_ASKED


def test_the_panel_joins_reading_and_computing_judges(make_world: Callable[..., tuple[pa.Table, pa.Table]]) -> None:
    candidates, comparisons = make_world(2, 4)
    documents = candidates["doc_id"].to_pylist()
    queries = sorted(set(candidates["query_id"].to_pylist()))
    asked = text_questions(
        comparisons,
        QUERY.table(
            {name: [q.hex() for q in queries] for name in ("external_id", "text")}
            | {"query_id": queries, "text_hash": [text_hash(q.hex()) for q in queries], "split": ["train"] * 2}
        ),
        TEXT_OF.table(
            {name: [d.hex() for d in documents] for name in ("external_id", "text", "title")}
            | {"doc_id": documents, "text_hash": [text_hash(d.hex()) for d in documents]}
        ),
    )
    config = JudgeConfig.model_validate({"judges": [{"kind": "null"}, {"kind": "similarity"}]})
    got: list[pa.Table] = []
    (null,) = kinds.reading(config)
    null.engine().ask(asked, iter([np.arange(len(asked.query))]), got.append)
    held = hold(got)
    reading = {"null": answer_source(asked, held.table, held.rows(asked.ids), null.read_reply(), NOT_ASKED)}
    found = JUDGMENT.check(judging.judge(comparisons, candidates, config, 0, reading), "here")
    assert found.num_rows == 2 * 2 * comparisons.num_rows
    assert found["error"].null_count == found.num_rows
    with pytest.raises(AssertionError, match="nothing was bought from judge null"):
        judging.judge(comparisons, candidates, config, 0)


def test_judge_id_is_about_answers_and_not_about_names() -> None:
    one, other = NullJudgeConfig(kind="null", name="a"), NullJudgeConfig(kind="null", name="b")
    assert kinds.of(one).identity == kinds.of(other).identity
    assert len(kinds.of(one).identity) == 16
