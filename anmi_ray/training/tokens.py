"""Tokenize texts once, into a file that all workers of a node map into memory and a resumed run reuses.

The file is named by a hash of tokenizer and texts, published whole, and made anew if its checksum is wrong. Memory
holds a chunk of the texts at a time.
Layout: header (magic, N texts, V tokens kept, CRC-32 of the rest), int32[V] tokens, zeros up to a multiple of 8,
int64[N + 1] where each list begins, int64[N] tokens that each text has; all little endian.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tokenizers
from numpy.typing import NDArray

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import ID_BYTES, copy_hash, id_array, id_matrix, mix
from anmi_ray.models.pairs import Ragged, TextsTokenizer, document_text

_HEADER = struct.Struct("<8sqqq")
_MAGIC = b"anmitok1"
_BLOCK = 1 << 24  # bytes
_CHUNK = 4096  # texts that are Python strings at a time


@dataclass(frozen=True)
class TokenCache:
    """A folder of token lists; `notice` receives why they are made in memory instead."""

    folder: Path
    notice: Callable[[str], None] = lambda _: None

    def lists(
        self,
        code: Callable[[Sequence[str]], Ragged],
        how: bytes,
        content: bytes,
        chunks: Callable[[], Iterable[list[str]]],
    ) -> Ragged:
        """Token lists by `code`, with hash `how`, of the texts of `chunks()`, with hash `content`.

        One process of a node makes them while the others wait.
        """
        name = hashlib.blake2b(how + content, digest_size=16).hexdigest()
        path = self.folder / f"{name}.tokens"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if (lists := _open(path)) is not None:
                return lists
            with _alone(self.folder / f"{name}.lock"):
                if (lists := _open(path)) is None:
                    _write(path, map(code, chunks()))
                    if (lists := _open(path)) is None:
                        raise OSError(f"{path} is not what was written")
        except OSError as error:
            self.notice(f"tokenized texts cannot be kept, every worker makes its own: {error}")
            lists = None
        return joined(map(code, chunks())) if lists is None else lists


def joined(parts: Iterable[Ragged]) -> Ragged:
    """Concatenate the lists of `parts`."""
    lists = list(parts)
    lengths = [np.diff(part.start) for part in lists]
    start = np.concatenate([[0], np.cumsum(np.concatenate([np.zeros(0, np.int64), *lengths]))]).astype(np.int64)
    values = np.concatenate([np.zeros(0, np.int32), *(part.values for part in lists)])
    return Ragged(values, start, np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in lists)]))


def tokenised(
    tables: Sequence[pa.Table],
    key: str,
    columns: tuple[str, ...],
    ids: pa.Array,
    place: str,
    pairs: TextsTokenizer,
    cache: TokenCache | None,
) -> tuple[Ragged, NDArray[np.int64]]:
    """Token lists of the texts of `ids`, and the index of each id's list.

    columns: (title, text) for documents, (text,) for queries.
    tables: read one at a time, more than once; they may repeat rows.
    Raises DataError if an id is in no table.
    """
    list_D = np.full(len(ids), -1, dtype=np.int64)
    content = hashlib.blake2b(digest_size=16)
    count = 0
    for id_R, rows in _rows(tables, key, columns, ids):
        list_D[id_R] = count + np.arange(len(id_R))
        count += len(id_R)
        if cache is not None:
            _add(content, rows)
    if missing := len(ids) - count:
        raise DataError(
            f"{missing} of {len(ids)} are missing, the first is {ids[int(np.argmin(list_D))].as_py().hex()}",
            place,
            "recompute the retrieve stage, which writes them",
        )

    def chunks() -> Iterator[list[str]]:
        for _, rows in _rows(tables, key, columns, ids):
            for at in range(0, rows.num_rows, _CHUNK):
                texts = [column.to_pylist() for column in rows.slice(at, _CHUNK).columns]
                yield texts[0] if len(texts) == 1 else list(map(document_text, *texts))

    code = pairs.of_documents if len(columns) > 1 else pairs.of_queries
    if cache is None:
        return joined(map(code, chunks())), list_D
    return cache.lists(code, _tokenizer(pairs, columns), content.digest(), chunks), list_D


def copies(tables: Sequence[pa.Table], ids: pa.Array) -> NDArray[np.int64]:
    """Number of each document of `ids`, shared by copies (`identity.copy_hash`)."""
    hashes = np.zeros((len(ids), ID_BYTES), dtype=np.uint8)
    for id_R, rows in _rows(tables, "doc_id", ("title", "text"), ids):
        texts = zip(*(column.to_pylist() for column in rows.columns), strict=True)
        hashes[id_R] = id_matrix(id_array(copy_hash(*parts) for parts in texts))
    return np.unique(mix(hashes), return_inverse=True)[1]


def _rows(
    tables: Iterable[pa.Table], key: str, columns: tuple[str, ...], ids: pa.Array
) -> Iterator[tuple[NDArray[np.int64], pa.Table]]:
    """Yield, for each table, the rows with new ids: their positions in `ids`, and the columns."""
    seen = np.zeros(len(ids), dtype=bool)
    for table in tables:
        at = pc.fill_null(pc.index_in(table[key].combine_chunks(), value_set=ids), -1).to_numpy().astype(np.int64)
        _, first = np.unique(at, return_index=True)
        rows = np.sort(first[at[first] >= 0])
        rows = rows[~seen[at[rows]]]
        seen[at[rows]] = True
        yield at[rows], table.select(columns).take(pa.array(rows))


def _add(content: hashlib.blake2b, rows: pa.Table) -> None:
    """Update a hash with the texts of some rows."""
    for column in rows.columns:
        for chunk in column.cast(pa.large_string()).chunks:
            _, offsets, text = chunk.buffers()
            end = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
            content.update((len(chunk)).to_bytes(8, "little") + np.diff(end).tobytes())
            content.update(memoryview(text)[end[0] : end[-1]] if text else b"")


def _tokenizer(pairs: TextsTokenizer, columns: tuple[str, ...]) -> bytes:
    """Hash of what determines the token lists besides the texts."""
    state = json.loads(pairs.tokenizer.backend_tokenizer.to_str())  # type: ignore[attr-defined]
    for changing in ("truncation", "padding"):  # of the last call, without effect on these lists
        state.pop(changing, None)
    kind = type(pairs.tokenizer)
    others = [tokenizers.__version__, kind.__module__, kind.__qualname__, pairs.max_tokens, columns, *pairs.form]
    return hashlib.blake2b(json.dumps([state, *others], sort_keys=True).encode(), digest_size=16).digest()


def _write(path: Path, parts: Iterable[Ragged]) -> None:
    """Publish a file of all lists of `parts`, which are not kept in memory."""
    for left in path.parent.glob(f".{path.name}.*"):  # of a process that was killed
        left.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            _write_lists(file, parts)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _write_lists(file: BinaryIO, parts: Iterable[Ragged]) -> None:
    file.write(bytes(_HEADER.size))
    kept = [np.zeros(0, np.int64)]
    lengths = [np.zeros(0, np.int64)]
    checksum = 0

    def add(array: NDArray[np.generic]) -> None:
        nonlocal checksum
        raw = array.tobytes()
        checksum = zlib.crc32(raw, checksum)
        file.write(raw)

    for part in parts:
        add(part.values.astype("<i4"))
        kept.append(np.diff(part.start))
        lengths.append(part.lengths)
    start = np.concatenate([[0], np.cumsum(np.concatenate(kept))]).astype("<i8")
    add(np.zeros(start[-1] % 2, "<i4"))
    add(start)
    add(np.concatenate(lengths).astype("<i8"))
    file.seek(0)
    file.write(_HEADER.pack(_MAGIC, len(start) - 1, start[-1], checksum))
    file.flush()
    os.fsync(file.fileno())


def _open(path: Path) -> Ragged | None:
    """The lists of a file, mapped into memory; None if it is missing or damaged."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, ValueError):  # ValueError: empty file
        return None
    if len(mapped) < _HEADER.size:
        return None
    magic, texts, tokens, checksum = _HEADER.unpack_from(mapped)
    begin = _HEADER.size + 4 * (tokens + tokens % 2)
    if magic != _MAGIC or min(texts, tokens) < 0 or len(mapped) != begin + 8 * (2 * texts + 1):
        return None
    found = 0
    for at in range(_HEADER.size, len(mapped), _BLOCK):
        found = zlib.crc32(memoryview(mapped)[at : at + _BLOCK], found)
    if found != checksum:
        return None
    values = np.frombuffer(mapped, "<i4", tokens, _HEADER.size)
    start = np.frombuffer(mapped, "<i8", texts + 1, begin)
    return Ragged(values, start, np.frombuffer(mapped, "<i8", texts, begin + 8 * (texts + 1)))


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock that ends with its process; without file locks, several may do the same work."""
    with path.open("wb") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
