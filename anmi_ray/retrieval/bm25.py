"""BM25 retrieval: bm25s' tokenizer and Snowball stems, Lucene's formula, exact and reproducible.

Scripts without spaces between words, such as Chinese, Japanese and Thai, are indexed by pairs of characters. The
weights are a sparse matrix and searching is a sparse product, so that `Statistics` of the whole collection can replace
those of a shard. Q queries, N documents, V words.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import Stemmer
from numpy.typing import NDArray
from scipy import sparse

from anmi_ray.config.retrieve import Bm25Config
from anmi_ray.core import environment, scripts
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.retrieval.hits import Hits, empty, top
from anmi_ray.retrieval.statistics import Statistics

with environment.without("jax"):  # bm25s would start it, and it reserves three quarters of a GPU's memory
    import bm25s
    from bm25s.tokenization import Tokenized, Tokenizer

_COUNTS = "counts.npz"
_WORDS = "words.txt"
_BATCH_SCORES = 1 << 20  # scores held at once (8 MB: within the cache)


@dataclass(frozen=True)
class Counts:
    """Occurrences of each word of `vocabulary` in each text: all that depends on texts only."""

    count_NV: sparse.csr_matrix
    vocabulary: list[str]

    @staticmethod
    def of(texts: Sequence[str], config: Bm25Config) -> Counts:
        """Count the words of `texts`. Raises ConfigError for an unknown stemmer or list of stop words."""
        rows, words, vocabulary = _tokenise(texts, config, _stemmer(config))
        # Sorted words: sums run in the same order whatever the order of documents, so equal documents tie exactly.
        order = sorted(range(len(vocabulary)), key=vocabulary.__getitem__)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        shape = (len(texts), len(vocabulary))
        count_NV = sparse.csr_matrix((np.ones(len(words)), (rows, place[words])), shape=shape)
        return Counts(count_NV, [vocabulary[i] for i in order])

    def save(self, folder: Path) -> None:
        """Write the counts into two files of `folder`."""
        sparse.save_npz(folder / _COUNTS, self.count_NV)  # a fifth of its size in memory
        (folder / _WORDS).write_bytes("\n".join(self.vocabulary).encode())

    @staticmethod
    def load(folder: Path) -> Counts:
        """Read what `save` wrote. Raises DataError if it is damaged."""
        try:
            count_NV = sparse.csr_matrix(sparse.load_npz(folder / _COUNTS))
            vocabulary = (folder / _WORDS).read_bytes().decode().split("\n")
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            remedy = "delete that folder: the words are counted again"
            raise DataError(f"damaged counts of words: {error}", str(folder), remedy) from error
        return Counts(count_NV, vocabulary if count_NV.get_shape()[1] else [])

    def statistics(self, words: Collection[str] | None = None) -> Statistics:
        """Return the statistics of these texts for `words` (None: all); shards add up to the collection."""
        documents, width = self.count_NV.get_shape()
        frequency_V = np.bincount(self.count_NV.indices, minlength=width).tolist()
        of_word = zip(self.vocabulary, frequency_V, strict=True)
        frequency = dict(of_word) if words is None else {word: count for word, count in of_word if word in words}
        return Statistics(documents, int(self.count_NV.sum()), frequency)


class Bm25Index:
    """An index over counted texts, given k1, b and the collection's statistics."""

    def __init__(self, counts: Counts, config: Bm25Config, statistics: Statistics | None = None) -> None:
        self._config = config
        self._stem = _stemmer(config)
        self._count_NV = counts.count_NV
        self._vocabulary = counts.vocabulary
        self._place_of = {word: place for place, word in enumerate(counts.vocabulary)}
        self._documents = counts.count_NV.get_shape()[0]
        self.statistics = statistics or counts.statistics()
        self._weight_VN = self._weights()

    def search(self, queries: Sequence[str], depth: int) -> Hits:
        """Return the `depth` best documents per query that share a word with it, padded by -1."""
        if not len(queries) or not self._documents:
            return empty(len(queries), depth)
        count_QV = self._count_known(queries)
        size = max(1, _BATCH_SCORES // self._documents)
        parts = [
            top((count_QV[start : start + size] @ self._weight_VN).toarray(), depth, above=0.0)
            for start in range(0, len(queries), size)
        ]
        return np.concatenate([index for index, _ in parts]), np.concatenate([score for _, score in parts])

    def _weights(self) -> sparse.csr_matrix:
        """Return Lucene's weights idf·f / (f + k1 (1 − b + b·|d|/avgdl)), idf = ln(1 + (N − n + ½)/(n + ½)).

        Robertson & Zaragoza 2009, section 3, with Lucene's idf and without the constant factor k1 + 1.
        """
        k1 = self._config.k1
        b = self._config.b
        statistics = self.statistics
        counts = self._count_NV.tocoo()
        length_N = np.asarray(self._count_NV.sum(axis=1)).ravel()
        mean = max(statistics.mean_length, 1e-9)
        idf_V = statistics.idf(self._vocabulary)
        norm = k1 * (1 - b + b * length_N[counts.row] / mean)
        weight = idf_V[counts.col] * counts.data / (counts.data + norm)
        return sparse.csr_matrix((weight, (counts.col, counts.row)), shape=(len(self._vocabulary), self._documents))

    def _count_known(self, queries: Sequence[str]) -> sparse.csr_matrix:
        rows, words, vocabulary = _tokenise(queries, self._config, self._stem)
        column_of = np.array([self._place_of.get(word, -1) for word in vocabulary], dtype=np.int64)
        column = column_of[words]
        inside = column >= 0
        shape = (len(queries), len(self._vocabulary))
        return sparse.csr_matrix((np.ones(int(inside.sum())), (rows[inside], column[inside])), shape=shape)


def words(queries: Sequence[str], config: Bm25Config) -> set[str]:
    """Return the words of queries."""
    return set(_tokenise(queries, config, _stemmer(config))[2])


def _tokenise(
    texts: Sequence[str], config: Bm25Config, stem: Stemmer.Stemmer | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """Return (text of each token, word of each token, words)."""
    tokens = tokenize(texts, config.stopwords, stem)
    lengths = [len(ids) for ids in tokens.ids]
    words = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in tokens.ids]) if lengths else np.zeros(0, int)
    vocabulary = sorted(tokens.vocab, key=tokens.vocab.__getitem__)
    return np.repeat(np.arange(len(lengths)), lengths), words, vocabulary


def tokenize(texts: Sequence[str], stopwords: str | None, stemmer: Any) -> Tokenized:
    """Return lower-case words of two or more letters, without stop words, stemmed, and `scripts.other_words`."""
    words: Any = stopwords or []
    split = [scripts.other_words(text) for text in texts]
    tokens = bm25s.tokenize([text for text, _ in split], stopwords=words, stemmer=stemmer, show_progress=False)
    assert isinstance(tokens, Tokenized)
    dropped = frozenset(Tokenizer(stopwords=words).stopwords) if any(others for _, others in split) else frozenset()
    for ids, (_, others) in zip(tokens.ids, split, strict=True):
        kept = [word for word in others if word not in dropped]
        stems = kept if stemmer is None else stemmer.stemWords(kept)
        ids.extend(tokens.vocab.setdefault(stem, len(tokens.vocab)) for stem in stems)
    return tokens


def stop_words(config: Bm25Config) -> frozenset[str]:
    """Return the stop words of the settings' language; for English more than those that are not indexed."""
    listed = "en_plus" if config.stopwords in ("en", "english") else config.stopwords
    return frozenset(Tokenizer(stopwords=listed or []).stopwords)


def _stemmer(config: Bm25Config) -> Stemmer.Stemmer | None:
    if config.stopwords:
        try:
            tokenize([""], config.stopwords, None)
        except ValueError as error:
            remedy = "give a language code such as en, or null"
            raise ConfigError(str(error), "retrieve.bm25.stopwords", remedy) from None
    if config.stemmer is None:
        return None
    if config.stemmer not in Stemmer.algorithms():
        remedy = f"use one of {', '.join(Stemmer.algorithms())}"
        raise ConfigError(f"no stemmer {config.stemmer!r}", "retrieve.bm25.stemmer", remedy)
    return Stemmer.Stemmer(config.stemmer)
