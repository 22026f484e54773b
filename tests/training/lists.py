"""A planted training problem: word k of the vocabulary is worth k, a document is as relevant as its words are worth.

Tables as the train stage reads them: Example, Text, Query. Everything follows from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anmi_ray.core.identity import digest, doc_id, query_id, rng, text_hash
from anmi_ray.core.records import EXAMPLE, QUERY, TEXT_OF
from anmi_ray.models.pairs import TextsTokenizer
from anmi_ray.training.tokens import TokenCache
from anmi_ray.training.training_set import TrainingSet, prepare
from tests.models.tiny import WORDS


@dataclass(frozen=True)
class Planted:
    """Example, Text and Query tables, and the worth of every document."""

    examples: pa.Table
    texts: pa.Table
    queries: pa.Table
    worth: dict[bytes, float]

    def lists(self, pairs: TextsTokenizer, cache: TokenCache | None = None) -> TrainingSet:
        """The training lists, tokenized."""
        return prepare([self.examples], [self.texts], [self.queries], pairs, cache)

    def columns(self) -> list[list[str]]:
        """The text of every example's query, then of its first document, its second, its third."""
        text = dict(zip(self.texts["doc_id"].to_pylist(), self.texts["text"].to_pylist(), strict=True))
        query = dict(zip(self.queries["query_id"].to_pylist(), self.queries["text"].to_pylist(), strict=True))
        rows = self.examples.to_pylist()
        documents = [[text[row["doc_ids"][k]] for row in rows] for k in range(3)]
        return [[query[row["query_id"]] for row in rows], *documents]


def planted(lists: int = 24, negatives: int = 5, randoms: int = 1, seed: int = 0) -> Planted:
    """`lists` examples: an anchor, `negatives` rated documents below it, `randoms` random ones without a rating."""
    columns: dict[str, list[object]] = {name: [] for name in EXAMPLE.schema.names}
    texts: dict[bytes, tuple[str, float]] = {}
    queries: list[tuple[bytes, str]] = []
    for i in range(lists):
        generator = rng("planted", seed, i)
        query = query_id(f"q{i}")
        queries.append((query, f"{WORDS[i % 7]} {WORDS[3]}"))
        documents, worth = [], []
        for j in range(1 + negatives + randoms):
            words = generator.integers(len(WORDS), size=int(generator.integers(3, 9)))
            document = doc_id(f"d{i}-{j}")
            value = float(words.mean())
            texts[document] = (" ".join(WORDS[word] for word in words), value)
            documents.append(document)
            worth.append(value)
        order = np.argsort(worth)[::-1]
        rating = 20.0 * (np.array(worth)[order] - np.mean(worth))
        rated = np.arange(len(order)) < 1 + negatives
        gaps = rating[0] - rating
        _append(columns, query, digest("example", query), [documents[j] for j in order], rating, gaps, rated)
    return Planted(
        EXAMPLE.check(EXAMPLE.table(columns), "planted"),
        TEXT_OF.table(
            {
                "doc_id": list(texts),
                "external_id": [f"{i}" for i in range(len(texts))],
                "text_hash": [text_hash(text) for text, _ in texts.values()],
                "title": [""] * len(texts),
                "text": [text for text, _ in texts.values()],
            }
        ),
        QUERY.table(
            {
                "query_id": [query for query, _ in queries],
                "external_id": [f"q{i}" for i in range(lists)],
                "text": [text for _, text in queries],
                "text_hash": [text_hash(text, str(i)) for i, (_, text) in enumerate(queries)],
                "split": ["train"] * lists,
            }
        ),
        {document: value for document, (_, value) in texts.items()},
    )


def _append(
    columns: dict[str, list[object]],
    query: bytes,
    example: bytes,
    documents: list[bytes],
    rating: np.ndarray,
    gaps: np.ndarray,
    rated: np.ndarray,
) -> None:
    columns["query_id"].append(query)
    columns["example_id"].append(example)
    columns["doc_ids"].append(documents)
    columns["ratings"].append([float(v) if r else None for v, r in zip(rating, rated, strict=True)])
    columns["rating_errors"].append([20.0 + 10.0 * i if r else None for i, r in enumerate(rated)])
    columns["weights"].append([1.0] + [0.0 if r and g < 40 else 0.7 for g, r in zip(gaps[1:], rated[1:], strict=True)])
    columns["categories"].append(["anchor"] + ["goldilocks" if r else "random" for r in rated[1:]])
    columns["tiers"].append([0] + [2 if r else 1 for r in rated[1:]])
    columns["gaps"].append([float(v) if r else None for v, r in zip(gaps, rated, strict=True)])
    columns["gap_errors"].append([50.0 if r else None for r in rated])
    columns["rating_mean"].append(float(rating[rated].mean()))
    columns["rating_sd"].append(float(rating[rated].std()))
