"""BM25 by Lucene: its analyzers of many languages, and its index on disk.

The index is built once into a folder and then mapped. One thread writes one segment whose merges keep the order, so
Lucene's number of a document is its index, ties go to the smaller one, and equal texts give equal rankings and scores.
Statistics of a larger collection are applied to the query: boosts replace each word's idf, and k1 and b are chosen so
that lengths count as in the whole collection. Q queries.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from anmi_ray.config.retrieve import LuceneConfig
from anmi_ray.core.errors import ConfigError, StoreError
from anmi_ray.retrieval import jvm
from anmi_ray.retrieval.hits import Hits, empty
from anmi_ray.retrieval.jvm import java
from anmi_ray.retrieval.statistics import Statistics

_FIELD = "contents"
_BUFFER_MB = 64.0  # postings in memory before they are written
_BLOCK = 64  # queries per task of a thread
_WORDS = 2**31 - 1  # distinct words of a query, which may be a whole document
_REBUILD = "remove it and run again"

check = jvm.check


def build(texts: Iterable[str], folder: Path, config: LuceneConfig) -> None:
    """Write an index of `texts` into an empty folder on a local disk, at most 2³¹ − 129 of them.

    Raises ConfigError for an unknown language and as `check` does, and StoreError when the folder cannot be written.
    """
    analyzer = _analyzer(config)
    with jvm.storage_errors(folder, "check that the folder can be written and has room, and run again"):
        directory = _directory(folder)
        writer = java("org.apache.lucene.index.IndexWriter")(directory, _writing(analyzer))
        try:
            # A field that counts words: no positions, nothing stored.
            kind = java("org.apache.lucene.document.FieldType")()
            kind.setIndexOptions(java("org.apache.lucene.index.IndexOptions").DOCS_AND_FREQS)
            # One of six constructors with three arguments: the cast decides which.
            empty_text = jvm.start().cast("java.lang.CharSequence", java("java.lang.String")(""))
            field = java("org.apache.lucene.document.Field")(_FIELD, empty_text, kind)
            document = java("org.apache.lucene.document.Document")()
            document.add(field)
            for text in texts:
                field.setStringValue(_text(text))
                writer.addDocument(document)
            writer.forceMerge(1)
            writer.setLiveCommitData(_described(config).entrySet())
            writer.commit()
        finally:
            writer.rollback()  # closes it; commits stay
            directory.close()
    (folder / "write.lock").unlink(missing_ok=True)


def words(queries: Sequence[str], config: LuceneConfig) -> set[str]:
    """Return the words of queries. Raises ConfigError as `build`."""
    analyzer = _analyzer(config)
    mapper = _mapper()
    return {word for query in queries for word in _analysed(analyzer, mapper, _text(query))}


class LuceneIndex:
    """An index of `documents` documents that `build` wrote, open for searching; k1 and b may differ.

    `whole`: statistics of the collection that contains these documents; by default their own.
    Raises ConfigError for an unknown language and as `check` does, and StoreError for an index that is missing,
    damaged, of another number of documents, or made by another analyzer.
    One Python thread at a time may use the indexes of a process; `search` starts its own threads.
    """

    def __init__(self, folder: Path, config: LuceneConfig, documents: int, whole: Statistics | None = None) -> None:
        self._config = config
        self._documents = documents
        self._analyzer = _analyzer(config)
        if not folder.is_dir():
            raise StoreError("no Lucene index", str(folder), "build it first")
        with jvm.storage_errors(folder, _REBUILD):
            self._directory = _directory(folder)
            self._reader = java("org.apache.lucene.index.DirectoryReader").open(self._directory)
            try:
                self._verify(folder)
            except BaseException:
                self.close()
                raise
        reader = jvm.start().cast("org.apache.lucene.index.IndexReader", self._reader)
        searcher = java("org.apache.lucene.search.IndexSearcher")
        searcher.setMaxClauseCount(_WORDS)
        self._searcher = searcher(reader)
        self._whole = whole
        self._boosts = dict[str, float]()
        k1, b = (config.k1, config.b) if whole is None else _lengths(config, self.statistics(()), whole)
        self._searcher.setSimilarity(java("org.apache.lucene.search.similarities.BM25Similarity")(k1, b))
        self._queries = java("io.anserini.search.query.BagOfWordsQueryGenerator")()
        self._boosted = None if whole is None else _parser()
        self._json = _mapper()

    def statistics(self, words: Collection[str]) -> Statistics:
        """Return these documents' own statistics of `words`; Lucene counts documents with at least one word."""
        term = java("org.apache.lucene.index.Term")
        counts = ((word, int(self._reader.docFreq(term(_FIELD, word)))) for word in words)
        documents = self._reader.getDocCount(_FIELD)
        length = self._reader.getSumTotalTermFreq(_FIELD)
        return Statistics(int(documents), int(length), {word: count for word, count in counts if count})

    def search(self, queries: Sequence[str], depth: int, threads: int = 1) -> Hits:
        """Return the `depth` best documents per query that share a word with it.

        (index int64[Q, depth], -1 padded; score float64[Q, depth]); ties go to the smaller index. A query is plain
        words, without Lucene's query syntax. The number of threads does not affect the result.
        """
        index, score = empty(len(queries), depth)
        if not len(queries) or not self._documents:
            return index, score
        boosted = None if self._whole is None else [self._boosted_query(_text(query)) for query in queries]

        def block(start: int) -> None:
            for row in range(start, min(start + _BLOCK, len(queries))):
                text = _text(queries[row])
                query = self._queries.buildQuery(_FIELD, self._analyzer, text) if boosted is None else boosted[row]
                if query is None:
                    continue
                documents, scores = self._search(query, depth)
                count = int(np.count_nonzero(scores > 0))
                index[row, :count] = documents[:count]
                score[row, :count] = scores[:count]

        def detached(start: int) -> None:
            try:
                block(start)  # a separate frame: releasing a reference to a Java object attaches the thread again
            finally:
                jvm.start().detach()  # Java must not know a thread that has ended: it would read its stack

        starts = range(0, len(queries), _BLOCK)
        if threads == 1:
            for start in starts:
                block(start)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(detached, starts))
        return index, score

    def close(self) -> None:
        """Close the files; the index cannot be searched afterwards."""
        self._reader.close()
        self._directory.close()

    def _boosted_query(self, query: str) -> Any:
        """Return the query with the word weights of the whole collection; None if no document here has any word.

        A word's boost is its count in the query times the ratio of its idf there and here. Not thread-safe. One call of
        a parser replaces four calls per word.
        """
        assert self._whole is not None
        assert self._boosted is not None
        counts = Counter(_analysed(self._analyzer, self._json, query))
        if new := [word for word in counts if word not in self._boosts]:
            own = self.statistics(new)
            here = [word in own.document_frequency for word in new]
            self._boosts.update(zip(new, np.where(here, self._whole.idf(new) / own.idf(new), 0.0), strict=True))
        parts = [f"{_escaped(word)}^{count * self._boosts[word]:.15f}" for word, count in counts.items()
                 if self._boosts[word]]  # fmt: skip
        return self._boosted.parse(" ".join(parts)) if parts else None

    def _search(self, query: Any, depth: int) -> tuple[list[int], np.ndarray[tuple[int], np.dtype[np.float32]]]:
        """Return documents and float32 scores of one of Lucene's queries, best first.

        All threads share the objects whose methods are called here: pyjnius stores a method's object in the class, so
        two threads calling it on two objects would interfere.
        """
        hits = json.loads(self._json.writeValueAsString(self._searcher.search(query, depth)))["scoreDocs"]
        return [hit["doc"] for hit in hits], np.array([hit["score"] for hit in hits], dtype=np.float32)

    def _verify(self, folder: Path) -> None:
        """Raise StoreError unless checksums, number of documents and analyzer are right."""
        leaves = self._reader.leaves()
        for place in range(leaves.size()):
            leaves.get(place).reader().checkIntegrity()
        if self._reader.numDocs() != self._documents or self._reader.maxDoc() != self._documents:
            message = f"a Lucene index of {self._reader.numDocs()} documents, not of {self._documents}"
            raise StoreError(message, str(folder), _REBUILD)
        actual = self._reader.getIndexCommit().getUserData().get("analyzer")
        expected = _described(self._config).get("analyzer")
        if actual != expected:
            raise StoreError(f"a Lucene index with analyzer {actual}, not {expected}", str(folder), _REBUILD)


def _directory(folder: Path) -> Any:
    return java("org.apache.lucene.store.FSDirectory").open(java("java.io.File")(str(folder)).toPath())


def _writing(analyzer: Any) -> Any:
    """Return settings for one segment in one file, merging only neighbors, so that document i keeps number i."""
    settings = java("org.apache.lucene.index.IndexWriterConfig")(analyzer)
    settings.setOpenMode(java("org.apache.lucene.index.IndexWriterConfig$OpenMode").CREATE)
    merges = java("org.apache.lucene.index.LogDocMergePolicy")()
    merges.setNoCFSRatio(1.0)
    settings.setMergePolicy(merges)
    settings.setMergeScheduler(java("org.apache.lucene.index.SerialMergeScheduler")())
    settings.setRAMBufferSizeMB(_BUFFER_MB)
    return settings


def _described(config: LuceneConfig) -> Any:
    """Return the metadata that identifies an index: its analyzer."""
    english = f", stemmer {config.stemmer}, stop words {'left out' if config.stopwords else 'kept'}"
    metadata = java("java.util.HashMap")()
    metadata.put("analyzer", config.language + (english if config.language == "en" else ""))
    return metadata


def _analyzer(config: LuceneConfig) -> Any:
    if config.language == "en":
        english = java("io.anserini.analysis.DefaultEnglishAnalyzer")
        return english.fromArguments(config.stemmer or "none", not config.stopwords, None)
    analyzers = java("io.anserini.analysis.AnalyzerMap")
    languages = sorted([*analyzers.analyzerMap.keySet().toArray(), "en"])
    if config.language not in languages:
        raise ConfigError(
            f"Lucene has no analyzer of the language {config.language!r}",
            "retrieve.lucene.language",
            f"use one of {', '.join(languages)}",
        )
    return analyzers.getLanguageSpecificAnalyzer(config.language)


def _mapper() -> Any:
    """Return a writer of Java objects as JSON: one call instead of one per value."""
    return java("com.fasterxml.jackson.databind.ObjectMapper")()


def _analysed(analyzer: Any, mapper: Any, text: str) -> list[str]:
    """Return the words of a text, in order, with repetitions."""
    analysed = java("io.anserini.analysis.AnalyzerUtils").analyze(analyzer, text)
    words: list[str] = json.loads(mapper.writeValueAsString(analysed))
    return words


def _parser() -> Any:
    """Return a parser of words with boosts between blanks, which does not analyze the words again."""
    keyword = java("org.apache.lucene.analysis.core.KeywordAnalyzer")()
    parser = java("org.apache.lucene.queryparser.classic.QueryParser")(_FIELD, keyword)
    parser.setSplitOnWhitespace(True)
    return parser


def _lengths(config: LuceneConfig, own: Statistics, whole: Statistics) -> tuple[float, float]:
    """Return k1 and b for which Lucene, with the mean length here, computes k1 (1 − b + b·|d|/avgdl) of the whole."""
    constant = config.k1 * (1 - config.b)
    rising = config.k1 * config.b * own.mean_length / max(whole.mean_length, 1e-9)
    k1 = constant + rising
    return k1, rising / k1 if k1 else config.b


def _escaped(word: str) -> str:
    """Escape any word for Lucene's query parser."""
    if word.isascii() and word.isalnum() and word.islower():  # not AND, OR, NOT
        return word
    units = word.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _text(text: str) -> str:
    """Replace halves of surrogate pairs, which cannot be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")
