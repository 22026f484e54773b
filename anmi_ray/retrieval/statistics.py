"""What BM25 knows of a collection besides a document: how many there are, how long, and how many hold each word.

Shards that know themselves alone give a word another weight each, and their scores cannot be compared. Of words that
no query has, nothing needs to be known: what is kept is bounded by the words of the queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Longs = NDArray[np.int64]
# One row a retriever; document_frequency is in the order of a list of words that stands elsewhere, or in `words`.
COUNTED = pa.schema(
    [
        pa.field("retriever", pa.string(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("document_frequency", pa.list_(pa.int64()), nullable=False),
    ]
)
WORDS = pa.field("words", pa.list_(pa.string()), nullable=False)


@dataclass(frozen=True)
class Statistics:
    """Documents, the sum of their lengths in words, and how many documents hold a word. Of shards they add up."""

    documents: int
    length: int
    document_frequency: Mapping[str, int]

    @property
    def mean_length(self) -> float:
        """Mean number of words of a document."""
        return self.length / self.documents if self.documents else 0.0

    def idf(self, words: Sequence[str]) -> NDArray[np.float64]:
        """ln(1 + (N − n + ½)/(n + ½)) of each word, as Lucene has it; one that is not known counts as held once."""
        held = np.array([max(1, self.document_frequency.get(word, 0)) for word in words], dtype=np.float64)
        return np.log1p((np.maximum(self.documents, held) - held + 0.5) / (held + 0.5))

    @staticmethod
    def merged(parts: Iterable[Statistics]) -> Statistics:
        """Statistics of the union of disjoint shards."""
        documents = 0
        length = 0
        frequency = dict[str, int]()
        for part in parts:
            documents = documents + part.documents
            length = length + part.length
            for word, count in part.document_frequency.items():
                frequency[word] = frequency.get(word, 0) + count
        return Statistics(documents, length, frequency)


def counted(found: Mapping[str, Statistics], words: Mapping[str, Sequence[str]]) -> pa.Table:
    """The Statistics of each retriever as COUNTED, of its `words` and in their order."""
    frequency = [[one.document_frequency.get(word, 0) for word in words[name]] for name, one in found.items()]
    return _table(list(found), [(one.documents, one.length) for one in found.values()], frequency)


def summed(parts: Iterable[pa.Table], words: Mapping[str, Sequence[str]]) -> pa.Table:
    """COUNTED of the whole collection from that of each shard, taken one by one, and the `words` of its rows."""
    size = {name: [0, 0] for name in words}
    frequency = {name: np.zeros(len(of_name), dtype=np.int64) for name, of_name in words.items()}
    for part in parts:
        for at, name in enumerate(part["retriever"].to_pylist()):
            size[name][0] += part["documents"][at].as_py()
            size[name][1] += part["length"][at].as_py()
            frequency[name] += part["document_frequency"][at].values.to_numpy()
    table = _table(list(words), [(documents, length) for documents, length in size.values()], list(frequency.values()))
    return table.append_column(WORDS, pa.array([list(of_name) for of_name in words.values()], WORDS.type))


def _table(names: list[str], size: list[tuple[int, int]], frequency: Sequence[Sequence[int] | Longs]) -> pa.Table:
    columns = {
        "retriever": names,
        "documents": [documents for documents, _ in size],
        "length": [length for _, length in size],
        "document_frequency": frequency,
    }
    return pa.table(columns, schema=COUNTED)


def read(table: pa.Table) -> dict[str, Statistics]:
    """The Statistics by retriever of what `summed` gave."""
    return {
        row["retriever"]: Statistics(
            row["documents"], row["length"], dict(zip(row["words"], row["document_frequency"], strict=True))
        )
        for row in table.to_pylist()
    }
