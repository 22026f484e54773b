"""Token lists from a file are those of the tokenizer; a damaged one is made anew; one of several workers makes it."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from anmi_ray.models.pairs import PairTokenizer, Ragged
from anmi_ray.training import tokens
from anmi_ray.training.tokens import TokenCache, tokenised
from anmi_ray.training.training_set import prepare
from tests.models.tiny import WORDS, write_tiny_bert
from tests.training.lists import planted


class Counting(PairTokenizer):
    """Counts the texts that it tokenises, and how many at a time."""

    calls: list[int]

    def of_documents(self, texts: Sequence[str]) -> Ragged:
        self.calls.append(len(texts))
        return super().of_documents(texts)

    def of_queries(self, texts: Sequence[str]) -> Ragged:
        self.calls.append(len(texts))
        return super().of_queries(texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("bert"))


def counting(folder: Path, max_tokens: int = 32) -> Counting:
    made = Counting(AutoTokenizer.from_pretrained(folder), max_tokens)
    made.calls = []
    return made


def table(texts: Sequence[str], first: int = 0) -> pa.Table:
    ids = [i.to_bytes(16, "big") for i in range(first, first + len(texts))]
    titles = [text.partition(" ")[0] if i % 2 else "" for i, text in enumerate(texts)]
    return pa.table({"doc_id": pa.array(ids, pa.binary(16)), "title": titles, "text": list(texts)})


def lists_of(
    pairs: PairTokenizer, tables: Sequence[pa.Table], ids: pa.Array, cache: TokenCache | None
) -> list[tuple[list[int], int]]:
    """(tokens kept, tokens in all) of every id."""
    found, list_D = tokenised(tables, "doc_id", ("title", "text"), ids, "texts", pairs, cache)
    return [(found[int(i)].tolist(), int(found.lengths[i])) for i in list_D]


def expected(pairs: PairTokenizer, tables: Sequence[pa.Table], ids: pa.Array) -> list[tuple[list[int], int]]:
    rows = {row["doc_id"]: row for one in tables for row in one.to_pylist()}
    texts = ["\n".join(part for part in (rows[i]["title"], rows[i]["text"]) if part) for i in ids.to_pylist()]
    coded = [pairs.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return [(ids[: pairs.max_tokens], len(ids)) for ids in coded]


TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join), min_size=1, max_size=12)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_lists_are_the_tokenizers_with_and_without_a_file(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, texts: list[list[str]], chance: random.Random
) -> None:
    pairs = counting(folder)
    tables = [table(part, 5 * i) for i, part in enumerate(texts)]  # ids repeat in several tables, some with other texts
    seen: set[bytes] = set()
    for at, one in enumerate(tables):  # an id has one text
        keep = [i for i, row in enumerate(one.to_pylist()) if row["doc_id"] not in seen]
        seen |= set(one["doc_id"].to_pylist())
        tables[at] = pa.concat_tables([one.take(pa.array(keep, pa.int64())), tables[at - 1].slice(0, 2)])
    ids = sorted(seen)
    chance.shuffle(ids)
    wanted = pa.array(ids[: len(ids) // 2 + 1], pa.binary(16))
    right = expected(pairs, tables, wanted)
    cache = TokenCache(tmp_path_factory.mktemp("cache"))
    assert lists_of(pairs, tables, wanted, None) == right
    assert lists_of(pairs, tables, wanted, cache) == right
    pairs.calls.clear()
    assert lists_of(pairs, tables, wanted, cache) == right
    assert pairs.calls == []


def test_other_texts_and_other_tokenizers_have_other_files(folder: Path, tmp_path: Path) -> None:
    cache, one = TokenCache(tmp_path), table(["word1 word2", "word3"])
    ids = one["doc_id"].combine_chunks()
    tables = [one, table(["word1 word2", "word4"]), table(["word1", "word2 word3"]), one.slice(0, 1)]
    for number, other in enumerate(tables, 1):
        some = ids.slice(0, other.num_rows)
        assert lists_of(counting(folder), [other], some, cache) == expected(counting(folder), [other], some)
        assert len(list(tmp_path.glob("*.tokens"))) == number
    lists_of(counting(folder, 16), [one], ids, cache)
    cased = counting(folder)
    cased.tokenizer.backend_tokenizer.normalizer = None  # type: ignore[attr-defined]
    lists_of(cased, [one], ids, cache)
    assert len(list(tmp_path.glob("*.tokens"))) == len(tables) + 2
    again = counting(folder)
    # changes the tokenizer's state, not its lists
    again.tokenizer(["word1"], truncation=True, max_length=8, padding=True)
    lists_of(again, [one], ids, cache)
    assert again.calls == []


def test_a_file_that_is_not_whole_is_made_anew(folder: Path, tmp_path: Path) -> None:
    one = table([" ".join(WORDS[i : i + 5]) for i in range(20)])
    ids, pairs, cache = one["doc_id"].combine_chunks(), counting(folder), TokenCache(tmp_path)
    right = lists_of(pairs, [one], ids, cache)
    [path] = tmp_path.glob("*.tokens")
    whole = path.read_bytes()
    chance = random.Random(0)
    flips = {*range(40), len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(20))}
    flipped = [bytearray(whole) for _ in flips]
    for content, at in zip(flipped, flips, strict=True):
        content[at] ^= 1
    cut = [whole[:size] for size in (0, 3, 31, 32, 60, len(whole) // 2, len(whole) - 1)]
    for content in [*flipped, *cut, whole + b"\0"]:
        path.write_bytes(content)
        pairs.calls.clear()
        assert lists_of(pairs, [one], ids, cache) == right
        assert pairs.calls == [20]
        assert path.read_bytes() == whole
    assert sorted(found.suffix for found in tmp_path.iterdir()) == [".lock", ".tokens"], "temporary files are gone"


def test_what_a_killed_process_left_is_removed(folder: Path, tmp_path: Path) -> None:
    one = table(["word1"])
    ids, cache = one["doc_id"].combine_chunks(), TokenCache(tmp_path)
    lists_of(counting(folder), [one], ids, cache)
    [path] = tmp_path.glob("*.tokens")
    path.rename(tmp_path / f".{path.name}.half")
    lists_of(counting(folder), [one], ids, cache)
    assert [found.name for found in tmp_path.glob("*tokens*")] == [path.name]


def test_one_of_several_workers_makes_the_file(folder: Path, tmp_path: Path) -> None:
    one = table([" ".join(WORDS[i : i + 5]) for i in range(50)])
    ids, cache = one["doc_id"].combine_chunks(), TokenCache(tmp_path)
    workers = [counting(folder) for _ in range(4)]
    together = threading.Barrier(4)

    def work(pairs: Counting) -> None:
        together.wait()
        assert lists_of(pairs, [one], ids, cache) == expected(pairs, [one], ids)

    running = [threading.Thread(target=work, args=(pairs,)) for pairs in workers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert [pairs.calls for pairs in workers if pairs.calls] == [[50]]


def test_memory_holds_a_chunk_of_texts(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_CHUNK", 7)
    one = table(["word1 word2"] * 40)
    pairs = counting(folder)
    lists_of(pairs, [one.slice(0, 25), one.slice(25)], one["doc_id"].combine_chunks(), TokenCache(tmp_path))
    assert max(pairs.calls) == 7
    assert sum(pairs.calls) == 40


def test_a_folder_that_cannot_be_written_is_said_and_training_goes_on(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said: list[str] = []
    one = table(["word1", "word2 word3"])
    ids, pairs = one["doc_id"].combine_chunks(), counting(folder)
    cache = TokenCache(tmp_path / "file" / "tokens", said.append)
    assert lists_of(pairs, [one], ids, cache) == expected(pairs, [one], ids)
    assert len(said) == 1
    assert "every worker makes its own" in said[0]


def test_a_training_set_is_the_same_from_the_file(folder: Path, tmp_path: Path) -> None:
    problem, pairs = planted(lists=8), counting(folder)
    made = [
        prepare([problem.examples], [problem.texts.slice(20), problem.texts], [problem.queries], pairs, cache)
        for cache in (None, TokenCache(tmp_path), TokenCache(tmp_path))
    ]
    assert len(pairs.calls) == 2 * 3  # the last one asked nothing: queries, and texts in two tables
    for other in made[1:]:
        np.testing.assert_array_equal(other.tokens_P, made[0].tokens_P)
        for list_of, text_P in (("documents", "document_P"), ("queries", "query_E")):
            for i, j in zip(getattr(other, text_P), getattr(made[0], text_P), strict=True):
                np.testing.assert_array_equal(getattr(other, list_of)[i], getattr(made[0], list_of)[j])
