"""Identity and chance, derived by hash: ids, buckets, presentation order, seeds, uniforms.

Nothing here depends on the order of execution, on a process, or on a global random state, so any number of
workers in any order gives the same rows. Ids are 16-byte BLAKE2b digests, domain-separated by `kind`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

ID_BYTES = 16
ID = pa.binary(ID_BYTES)
# Stripped from the ends of ids and names: all Unicode white space, zero-width characters, and the byte-order mark.
BLANKS = "".join(c for c in map(chr, range(0x3001)) if c.isspace()) + "\u200b\u200c\u200d\u2060\ufeff"
# In the place of a second document, where a question is about one alone: no collection has it, and it sorts last.
NOTHING = b"\xff" * ID_BYTES


def digest(kind: str, *parts: str | bytes | int) -> bytes:
    """16-byte id of `parts`; each part is length-prefixed, so ("ab", "c") and ("a", "bc") differ.

    >>> digest("doc", "a") == digest("query", "a")
    False
    """
    h = hashlib.blake2b(digest_size=ID_BYTES, person=kind.encode())  # at most 16 bytes: a longer kind is refused
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        h.update(len(raw).to_bytes(8, "little"))
        h.update(raw)
    return h.digest()


def normalize_id(text: str) -> str:
    """Strip white space and invisible characters from both ends of an id or a name.

    >>> normalize_id(" d1\\u00a0\\u200b")
    'd1'
    """
    return text.strip(BLANKS)


def doc_id(external_id: str) -> bytes:
    """Id of a document: the hash of its id in the collection."""
    return digest("doc", external_id)


def query_id(external_id: str) -> bytes:
    """Id of a query: the hash of its id in the collection."""
    return digest("query", external_id)


def text_hash(*parts: str) -> bytes:
    """Hash of a text (title and body for documents); equal texts share it whatever their ids."""
    return digest("text", *parts)


def copy_hash(*parts: str) -> bytes:
    """Hash of a text up to white space and case: what "a copy of the same text" means."""
    return text_hash(" ".join(" ".join(parts).split()).casefold())


def comparison_id(query: bytes, doc_a: bytes, doc_b: bytes, again: int = 0) -> bytes:
    """Id of an unordered pair of documents under a query; needs doc_a < doc_b. `again` tells repeated askings apart."""
    return digest("comparison", query, doc_a, doc_b, *([again] if again else []))


def bucket_of(text_hash_value: bytes, buckets: int) -> int:
    """Bucket of a query: the leading bits of its text's hash. `buckets` is a power of two.

    Equal query texts land in one bucket, whatever their ids.
    """
    return int.from_bytes(text_hash_value[:4], "big") * buckets >> 32


def seed(*parts: str | bytes | int) -> int:
    """A 64-bit seed derived from `parts`."""
    return int.from_bytes(digest("seed", *parts)[:8], "little")


def rng(*parts: str | bytes | int) -> np.random.Generator:
    """A generator seeded by `parts` (Philox: counter-based, the same numbers on every machine)."""
    return np.random.Generator(np.random.Philox(key=seed(*parts)))


def id_array(ids: Iterable[bytes]) -> pa.FixedSizeBinaryArray:
    """Ids as an Arrow array of binary(16)."""
    return pa.array(list(ids), type=ID)


def id_column(ids: NDArray[np.uint8]) -> pa.FixedSizeBinaryArray:
    """Ids uint8[N, 16] as an Arrow array of binary(16); the inverse of `id_matrix`."""
    return pa.FixedSizeBinaryArray.from_buffers(ID, len(ids), [None, pa.py_buffer(np.ascontiguousarray(ids))])


def id_matrix(column: pa.ChunkedArray | pa.Array) -> NDArray[np.uint8]:
    """An Arrow binary(16) column without nulls as uint8[N, 16], without copying where Arrow allows it."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # combine_chunks of an empty column
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], type=ID)
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.zeros((0, ID_BYTES), dtype=np.uint8)
    flat = np.frombuffer(data, dtype=np.uint8)
    start = array.offset * ID_BYTES
    return flat[start : start + len(array) * ID_BYTES].reshape(-1, ID_BYTES)


def id_order(*columns: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Stable order of rows by one or more id columns (uint8[N, 16]), the first column leading, as bytes compare."""
    words = [np.ascontiguousarray(column).view(">u8").astype(np.uint64) for column in columns]
    return np.lexsort([word for pair in reversed(words) for word in (pair[:, 1], pair[:, 0])])


def _splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def mix(*columns: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """A 64-bit hash per row over id columns (uint8[N, 16])."""
    state = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        words = np.ascontiguousarray(column).view("<u8")
        state = _splitmix64(_splitmix64(state ^ words[:, 0]) ^ words[:, 1])
    return state


def mix_ids(*columns: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A 16-byte id per row over id columns (uint8[N, 16]): two hashes that read the columns in two orders."""
    return np.stack([mix(*columns), mix(*reversed(columns))], axis=1).view(np.uint8).reshape(-1, ID_BYTES)


def uniforms(ids: NDArray[np.uint8], *salt: str | bytes | int) -> NDArray[np.float64]:
    """One uniform in (0, 1) per row of `ids` (uint8[N, 16]), a pure function of the row and `salt`.

    SplitMix64 over the id's two words and the salt's seed: vectorised, about 50 M/s.
    """
    words = np.ascontiguousarray(ids).view("<u8").astype(np.uint64)
    with np.errstate(over="ignore"):
        mixed = _splitmix64(words[:, 0] ^ np.uint64(seed(*salt)))
        mixed = _splitmix64(mixed + words[:, 1])
    # 52 bits: with 53 the largest value plus a half would round to 1.0
    return ((mixed >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def hash_sample(ids: Sequence[bytes], size: int, *salt: str | bytes | int) -> list[bytes]:
    """The `size` ids with the smallest salted hash: a sample that does not depend on order or on sharding."""
    return sorted(set(ids), key=lambda i: (digest("sample", *salt, i), i))[:size]
