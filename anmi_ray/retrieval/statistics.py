"""Statistics of a collection for BM25: number and length of documents, and document frequencies of the queries' words.

With its own statistics, each shard would weigh words differently, and scores could not be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Longs = NDArray[np.int64]
# One row per retriever; document_frequency is in the order of a list of words stored elsewhere, or in `words`.
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
    """Number of documents, sum of their lengths in words, and documents per word; shards add up."""

    documents: int
    length: int
    document_frequency: Mapping[str, int]

    @property
    def mean_length(self) -> float:
        """Mean number of words of a document."""
        return self.length / self.documents if self.documents else 0.0

    def idf(self, words: Sequence[str]) -> NDArray[np.float64]:
        """Return ln(1 + (N − n + ½)/(n + ½)) of each word, as in Lucene; unknown words count as occurring once."""
        frequency = np.array([max(1, self.document_frequency.get(word, 0)) for word in words], dtype=np.float64)
        return np.log1p((np.maximum(self.documents, frequency) - frequency + 0.5) / (frequency + 0.5))

    @staticmethod
    def merged(parts: Iterable[Statistics]) -> Statistics:
        """Return the statistics of the union of disjoint shards."""
        documents = length = 0
        frequency = Counter[str]()
        for part in parts:
            documents += part.documents
            length += part.length
            frequency.update(part.document_frequency)
        return Statistics(documents, length, frequency)


def counted(statistics: Mapping[str, Statistics], words: Mapping[str, Sequence[str]]) -> pa.Table:
    """Return the Statistics of each retriever as COUNTED, for its `words` in their order."""
    frequency = [[one.document_frequency.get(word, 0) for word in words[name]] for name, one in statistics.items()]
    return _table(list(statistics), [(one.documents, one.length) for one in statistics.values()], frequency)


def summed(parts: Iterable[pa.Table], words: Mapping[str, Sequence[str]]) -> pa.Table:
    """Sum COUNTED over shards, and add the column WORDS."""
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
    """Return the Statistics by retriever from the table of `summed`."""
    return {
        row["retriever"]: Statistics(
            row["documents"], row["length"], dict(zip(row["words"], row["document_frequency"], strict=True))
        )
        for row in table.to_pylist()
    }
