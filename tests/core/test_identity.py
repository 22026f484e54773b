"""Identity by hash: golden values (a change makes every store and every draw another), and properties."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from anmi_ray.core import identity

PARTS = st.lists(st.one_of(st.text(max_size=8), st.binary(max_size=8), st.integers(-(2**40), 2**40)), max_size=4)
IDS = np.frombuffer(hashlib.shake_128(b"ids").digest(16 * 20_000), dtype=np.uint8).reshape(-1, 16)


# --- ids ---------------------------------------------------------------------------------------------------------


def test_golden_digests() -> None:
    assert identity.digest("doc", "a").hex() == "fc7f37d5e5a0b35613275c98f0f0ee64"
    assert identity.doc_id("MS MARCO 7").hex() == "5b6840701c181974b138b9e999dcd199"
    assert identity.query_id("π").hex() == "a12b04f6b03482176cb33bb2c6f3c253"
    assert identity.text_hash("title", "body").hex() == "41ec414ddcb0872418e6501747a613f9"
    assert identity.comparison_id(b"q" * 16, b"a" * 16, b"b" * 16).hex() == "ed7a5ec594d05a9d7b73b1cd8b0594b0"
    assert identity.seed("judge", 7, b"\x00") == 15447748604083465106
    assert identity.rng("compare", 1).integers(0, 1000, 5).tolist() == [982, 373, 764, 480, 113]


def test_a_kind_is_never_cut() -> None:
    """BLAKE2b's personalisation has 16 bytes: two longer kinds would share their ids."""
    identity.digest("x" * 16, "a")
    with pytest.raises(ValueError, match="person"):
        identity.digest("x" * 17, "a")


@given(PARTS, PARTS)
@example(["ab", "c"], ["a", "bc"])
@example(["ab"], ["ab", ""])
@example([12], [b"12"])
def test_parts_are_length_prefixed(left: list[str | bytes | int], right: list[str | bytes | int]) -> None:
    def raw(parts: list[str | bytes | int]) -> list[bytes]:
        return [part if isinstance(part, bytes) else str(part).encode() for part in parts]

    assert (identity.digest("k", *left) == identity.digest("k", *right)) == (raw(left) == raw(right))


# --- buckets -----------------------------------------------------------------------------------------------------


@given(st.binary(min_size=16, max_size=16), st.integers(0, 16))
def test_a_bucket_is_the_leading_bits(value: bytes, bits: int) -> None:
    bucket = identity.bucket_of(value, 1 << bits)
    assert bucket == int.from_bytes(value, "big") >> (128 - bits)
    assert 0 <= bucket < 1 << bits


def test_buckets_are_uniform() -> None:
    buckets = [identity.bucket_of(identity.text_hash(f"query {i}"), 64) for i in range(20_000)]
    counts = np.bincount(buckets, minlength=64)
    assert len(counts) == 64
    assert stats.chisquare(counts).pvalue > 1e-3


# --- chance ------------------------------------------------------------------------------------------------------


def correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(np.mean((a - a.mean()) * (b - b.mean())) / (a.std() * b.std()))


def test_golden_uniforms() -> None:
    ids = np.arange(48, dtype=np.uint8).reshape(3, 16)
    np.testing.assert_array_equal(
        identity.uniforms(ids, "golden", 1), [0.29571018781385583, 0.30440442818079083, 0.967773845725494]
    )


def test_uniforms_are_between_zero_and_one(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = identity.uniforms(IDS, "range")
    assert draws.dtype == np.float64
    assert draws.min() > 0.0
    assert draws.max() < 1.0
    for word in (0, 2**64 - 1):  # the two ends of the generator, which no test would meet by chance
        monkeypatch.setattr(identity, "_splitmix64", lambda x, word=word: np.full_like(x, np.uint64(word)))
        (end,) = identity.uniforms(IDS[:1], "range")
        assert 0.0 < end < 1.0
        assert min(end, 1.0 - end) == 2.0**-53


@given(st.permutations(range(20)), st.integers(0, 19))
def test_uniforms_belong_to_rows(order: list[int], cut: int) -> None:
    """Neither order nor slicing nor memory layout changes the draw of a row."""
    draws = identity.uniforms(IDS[:20], "rows")
    np.testing.assert_array_equal(identity.uniforms(IDS[:20][order], "rows"), draws[order])
    np.testing.assert_array_equal(identity.uniforms(IDS[cut:20], "rows"), draws[cut:])
    np.testing.assert_array_equal(identity.uniforms(np.asfortranarray(IDS[:20]), "rows"), draws)
    np.testing.assert_array_equal(identity.uniforms(IDS[:20:3], "rows"), draws[::3])
    assert identity.uniforms(IDS[:0], "rows").shape == (0,)


@pytest.mark.parametrize("ids", ["random", "counting", "counting in the other word"])
def test_uniforms_are_uniform(ids: str) -> None:
    """Kolmogorov-Smirnov, also for ids that hardly differ."""
    rows = IDS
    if ids != "random":
        words = np.zeros((20_000, 2), dtype="<u8")
        words[:, int("other" in ids)] = np.arange(20_000)
        rows = words.view(np.uint8)
    draws = identity.uniforms(rows, "ks")
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert abs(correlation(draws[1:], draws[:-1])) < 4 / np.sqrt(len(draws))


def test_salts_are_independent() -> None:
    salts = [identity.uniforms(IDS, *salt) for salt in (("a", 0), ("a", 1), ("b", 0), ("a0",), (b"a", "0", 0))]
    worst = max(abs(correlation(a, b)) for a, b in itertools.combinations(salts, 2))
    assert worst < 4.5 / np.sqrt(len(IDS))
    cells = np.histogram2d(salts[0], salts[1], bins=8)[0]
    assert stats.chisquare(cells.ravel()).pvalue > 1e-3


def test_another_process_draws_the_same() -> None:
    code = (
        "import numpy as np; from anmi_ray.core import identity; ids = np.arange(48, dtype=np.uint8).reshape(3, 16);"
        "print(identity.doc_id('x').hex(), identity.uniforms(ids, 's').tolist(), identity.rng('k').random())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "3", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    ids = np.arange(48, dtype=np.uint8).reshape(3, 16)
    here = f"{identity.doc_id('x').hex()} {identity.uniforms(ids, 's').tolist()} {identity.rng('k').random()}"
    assert done.stdout.strip() == here


# --- samples -----------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=30), st.integers(0, 12), st.randoms())
def test_a_sample_depends_on_the_set_only(ids: list[bytes], size: int, random: object) -> None:
    sample = identity.hash_sample(ids, size, "salt")
    assert len(sample) == min(size, len(set(ids)))
    assert set(sample) <= set(ids)
    assert identity.hash_sample([*ids[::-1], *ids], size, "salt") == sample
    assert identity.hash_sample(ids, size + 1, "salt")[:size] == sample


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=30), st.integers(1, 5), st.integers(1, 8))
def test_samples_of_shards_join(ids: list[bytes], shards: int, size: int) -> None:
    """The sample of the whole is the sample of the shards' samples: no worker needs all ids."""
    parts = [identity.hash_sample(ids[shard::shards], size, "s") for shard in range(shards)]
    assert identity.hash_sample([i for part in parts for i in part], size, "s") == identity.hash_sample(ids, size, "s")


def test_salts_sample_differently() -> None:
    ids = [row.tobytes() for row in IDS[:200]]
    assert identity.hash_sample(ids, 20, "a") != identity.hash_sample(ids, 20, "b")


# --- columns of ids ----------------------------------------------------------------------------------------------


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_id_matrix_of_slices_and_chunks(ids: list[bytes], cut: int, start: int) -> None:
    expected = np.array([list(value) for value in ids], dtype=np.uint8).reshape(-1, 16)
    whole = identity.id_array(ids)
    np.testing.assert_array_equal(identity.id_matrix(whole), expected)
    np.testing.assert_array_equal(identity.id_matrix(whole.slice(start)), expected[start:])
    np.testing.assert_array_equal(identity.id_matrix(whole.slice(start, 2)), expected[start : start + 2])
    chunked = pa.chunked_array([whole.slice(0, cut), whole.slice(cut)], type=identity.ID)
    np.testing.assert_array_equal(identity.id_matrix(chunked), expected)
    np.testing.assert_array_equal(identity.id_matrix(chunked.slice(start)), expected[start:])


def test_id_matrix_copies_nothing() -> None:
    assert identity.id_matrix(pa.chunked_array([], type=identity.ID)).shape == (0, 16)
    array = identity.id_array([b"x" * 16, b"y" * 16])
    assert identity.id_matrix(array).ctypes.data == array.buffers()[1].address


@pytest.mark.parametrize("blank", [" ", "\t", "\r\n", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2060", "\ufeff"])
def test_blanks_around_an_id_are_stripped(blank: str) -> None:
    assert identity.normalize_id(f"{blank} d{blank}1 {blank}{blank}") == f"d{blank}1"
    assert identity.normalize_id(blank) == ""
