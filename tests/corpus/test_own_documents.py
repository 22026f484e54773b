"""Which document is a query's own: by id and text, over a collection or over the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from anmi_ray.config.corpus import OwnDocument
from anmi_ray.core.identity import doc_id, id_array, query_id
from anmi_ray.core.records import RUN
from anmi_ray.corpus.own_documents import Texts, find, find_in_run, leave_out
from anmi_ray.corpus.reader import qrel_table

ASKED = {"1": "how often is a sourdough starter fed?", "2": "sunlight that tomato plants need"}
ELSEWHERE = qrel_table({("1", "7"): 1, ("2", "8"): 1})
ITS_OWN = qrel_table({("1", "1"): 1, ("2", "2"): 1})


def queries(texts: Mapping[str, str] = ASKED) -> pa.Table:
    return pa.table(
        {
            "query_id": id_array(map(query_id, texts)),
            "external_id": pa.array(list(texts), pa.string()),
            "text": pa.array(list(texts.values()), pa.string()),
        }
    )


def documents(*texts: tuple[str, str]) -> pa.Table:
    names = [str(i + 1) for i in range(len(texts))]
    titles, bodies = (pa.array(column, pa.string()) for column in zip(*texts, strict=True))
    return pa.table({"doc_id": id_array(map(doc_id, names)), "title": titles, "text": bodies})


SAME = documents(("", ASKED["1"]), ("", ASKED["2"]))
EDITED = documents(("", "How often is a sourdough starter fed"), ("Tomatoes", "Sunlight that  tomato plants need."))
TITLED = documents((ASKED["1"], "Mine is a month old. I keep it in the fridge."), (ASKED["2"], "I have ten of them."))
LONGER = documents(("", f"{ASKED['1']} Mine is a month old."), ("", f"{ASKED['2']} on a balcony to the north?"))
OTHERS = documents(("", "Paris is the capital of France."), ("Tuples", "Tuples are immutable."))
CHINESE = documents(("", "酵头每天喂几次？"), ("", "番茄需要多少阳光"))


@pytest.mark.parametrize(
    ("table", "rule", "grades", "left_out", "kept"),
    [
        (SAME, "same-text", ELSEWHERE, 2, 0),
        (EDITED, "same-text", None, 2, 0),
        (TITLED, "same-text", ELSEWHERE, 2, 0),
        (LONGER, "same-text", ELSEWHERE, 2, 0),
        (OTHERS, "same-text", ELSEWHERE, 0, 2),  # both are numbered from 1
        (OTHERS, "same-text", ITS_OWN, 0, 0),  # an id links a query to its answer
        (TITLED, "same-text", ITS_OWN, 0, 0),
        (SAME, "same-text", ITS_OWN, 2, 0),  # nothing but the query once more
        (OTHERS, "same-id", ELSEWHERE, 2, 0),
        (TITLED, "same-id", ITS_OWN, 2, 0),
        (SAME, "keep", ELSEWHERE, 0, 0),
    ],
)
def test_own_documents_have_id_and_text_of_the_query(
    table: pa.Table, rule: OwnDocument, grades: pa.Table | None, left_out: int, kept: int
) -> None:
    found = find(queries(), [table.slice(0, 1), table.slice(1)], rule, grades)
    assert (found.pairs.num_rows, found.kept) == (left_out, kept)
    assert (found.notice() is None) == (left_out + kept == 0)


def test_texts_without_spaces_are_compared_by_pairs_of_characters() -> None:
    asked = queries({"1": "酵头每天喂几次", "2": "汽车链条怎么上油"})
    found = find(asked, [CHINESE], "same-text")
    assert found.pairs["query_id"].to_pylist() == [query_id("1")]
    assert found.kept == 1


def test_edited_texts_are_own_documents_where_most_are() -> None:
    asked = queries(ASKED | {"3": "when should a bike chain be oiled?"})
    table = pa.concat_tables([SAME, documents(*[("", "x")] * 2, ("", "a chain wants oil each 200 km")).slice(2)])
    found = find(asked, [table], "same-text")
    assert (found.pairs.num_rows, found.kept) == (3, 0)


def run(*rows: tuple[str, str, int]) -> pa.Table:
    return RUN.table(
        {
            "query_id": id_array(query_id(query) for query, _, _ in rows),
            "doc_id": id_array(doc_id(document) for _, document, _ in rows),
            "system": ["a"] * len(rows),
            "rank": [rank for *_, rank in rows],
            "score": [-float(rank) for *_, rank in rows],
        }
    )


FOUND = run(("1", "1", 1), ("1", "7", 2), ("1", "2", 3), ("2", "8", 1), ("2", "2", 2), ("2", "1", 3))
NAMES = ["1", "2", "7", "8"]


def texts_of(table: pa.Table) -> Texts:
    return lambda *_: (queries(), table)


@pytest.mark.parametrize("with_texts", [True, False])
def test_ranks_close_up_where_the_own_document_stood(with_texts: bool) -> None:
    said: list[str] = []
    texts = texts_of(SAME) if with_texts else None
    own = find_in_run(FOUND, NAMES, "same-text", texts, ELSEWHERE, said.append)
    assert (own.num_rows, len(said)) == (2, 1)
    left = leave_out(FOUND, own)
    RUN.check(left, "run")
    assert left["doc_id"].to_pylist() == [doc_id(name) for name in ("7", "2", "8", "1")]
    assert left["rank"].to_pylist() == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("found", "texts", "grades", "messages"),
    [
        (FOUND, texts_of(OTHERS), ELSEWHERE, 1),
        (FOUND, None, ITS_OWN, 0),
        (run(("1", "1", 1), ("2", "7", 1), ("3", "7", 1)), None, ELSEWHERE, 1),  # by accident
        (run(("1", "7", 1), ("2", "8", 1)), None, ELSEWHERE, 0),
    ],
)
def test_a_run_keeps_documents_that_are_not_the_query(
    found: pa.Table, texts: Texts | None, grades: pa.Table, messages: int
) -> None:
    said: list[str] = []
    own = find_in_run(found, NAMES, "same-text", texts, grades, said.append)
    assert (own.num_rows, len(said)) == (0, messages)
    assert leave_out(found, own).equals(found)
