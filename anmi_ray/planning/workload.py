"""What each stage of a run has to do: rows, files, core-seconds, GPU hours, and what is kept.

Rows follow from the settings and the collection's counts; seconds from per-row costs measured on two cores (they
scale with cores), and are there to tell minutes from days.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anmi_ray.config.distill import DEV_SHARE, TEST_SHARE, DistillConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.config.paths import as_written
from anmi_ray.config.retrieve import HnswIndex, IvfPqIndex, RetrieveConfig, Retriever
from anmi_ray.judging import kinds
from anmi_ray.judging.kinds.encoder import TOKENS as ENCODER_TOKENS
from anmi_ray.judging.questions import AT_ONCE
from anmi_ray.judging.spend import gpu_hours
from anmi_ray.planning.prices import Cost, of_pairs
from anmi_ray.tables import formats

# Core-seconds per row or token, measured by running the quickstart on two cores of an AMD EPYC with avx512_bf16.
CORE_SECONDS = {
    "read a document": 2e-5,
    "embed a document": 0.015,
    "search a document for a query": 4.5e-8,  # BM25 and exact cosines of 384 dimensions
    "embed a query of 32 tokens": 3.5e-3,
    "score a pair by its tokens": 6e-5,  # MaxSim of 32 and 128 vectors of 384 dimensions
    "choose a comparison": 8e-5,
    "judge a pair in process": 9e-6,
    "ask an endpoint": 2e-3,  # this machine's part; the server's is its own
    "rate a comparison": 7e-6,
    "train a token": 4e-4,  # of pairs as long as max_tokens allows: most are shorter
    "score a token": 1.4e-4,
    "mine a query": 2.2e-4,
    "measure a query": 5.4e-3,
}
# Files of a bucket, by stage; a training's and a report's are few.
_PARTS = {
    "ingest": 2, "retrieve": 3, "compare": 1, "sample": 1, "borderline": 1, "judge": 1, "label": 1, "validate": 1,
    "rate": 3, "refit": 3, "mine": 1, "rerank": 1,
}  # fmt: skip
# Share of candidates that are borderline (80 to 150 points) and not yet compared with their anchor, on the long side:
# .6 % by the quickstart's panel, .5 % by SciFact's, 1.3 % by the similarity judge on a small collection.
BORDERLINE = 0.015
_ROW_BYTES = {
    "run": 30, "candidate": 45, "text": 700, "comparison": 50, "judgment": 12, "answer": 60, "rating": 60,
    "example": 500, "hit": 23,
}  # fmt: skip
# Of a document of 1,500 characters, and of a shard with its manifest: counts of words, Lucene's index, 384 numbers.
_INDEX_BYTES: dict[Retriever, int] = {"bm25": 210, "lucene": 195, "dense": 4 * 384}
_INDEX_FILES: dict[Retriever, int] = {"bm25": 3, "lucene": 5, "dense": 2}


@dataclass(frozen=True)
class Line:
    """One stage's work: rows of what, core-seconds, bytes and files kept, GPU hours and what others are paid.

    `limited`: seconds that it takes at least however many cores there are: on GPUs, and by rate limits.
    """

    stage: str
    work: str
    seconds: float
    bytes: float
    dollars: float = 0.0
    limited: float = 0.0
    files: int = 0
    gpu_hours: float = 0.0


def _judging(
    config: JudgeConfig,
    comparisons: int,
    candidates: int,
    asked: Sequence[Cost],
    stage: str = "judge",
    distill: DistillConfig | None = None,
) -> Line:
    """A round of judging: what is computed here, and the calls to language models, judge after judge.

    distill: how the distilled judges of the panel are made.
    """
    reading = kinds.prompted(config)
    models = {judge.name: judge.model_inputs(distill) for judge in map(kinds.of, config.judges)}
    encoders = [(name, read.form, read.tokens) for name, read in models.items() if read is not None]
    calls, here = 2 * comparisons, len(config.judges) - len(reading) - len(encoders)
    missing = {judge.name: calls for judge in reading} | {cost.judge: cost.missing for cost in asked}
    work = [f"{calls * here:,} judgments by {here} in-process judges, both orders"] if here else []
    work += [f"{count:,} calls to {name}" for name, count in missing.items()]
    scored = 0
    for name, form, tokens in encoders:
        inputs = calls if form == "pairwise" else candidates
        scored += inputs * tokens
        work.append(f"{inputs:,} inputs to {name}, of at most {tokens:,} tokens each")
    seconds = scored * CORE_SECONDS["score a token"] + calls * here * CORE_SECONDS["judge a pair in process"]
    seconds += sum(missing.values()) * CORE_SECONDS["ask an endpoint"]
    asking = len(reading) + len(encoders)
    kept = calls * (len(config.judges) * _ROW_BYTES["judgment"] + asking * _ROW_BYTES["answer"])
    return Line(
        stage,
        "; ".join(work),
        seconds,
        kept,
        sum(cost.dollars or 0.0 for cost in asked),
        sum((cost.hours or 0.0) * 3600 for cost in asked),
        -(-calls // AT_ONCE) * asking,
        sum(cost.gpu_hours or 0.0 for cost in asked),
    )


def comparisons(experiment: Experiment, counts: dict[str, int]) -> int:
    """Pairs that will be compared, in one order; of a file's, at most."""
    if experiment.compare.path is not None:
        return _rows(Path(experiment.compare.path).expanduser())
    candidates = min(experiment.retrieve.candidates, counts["documents"])
    return counts["train"] * candidates * experiment.compare.degree // 2


def _validating(experiment: Experiment, candidates: int, pairs: int, asked: Sequence[Cost]) -> Iterator[Line]:
    """The second round: borderline documents found, judged, and the fit of all judgments."""
    documents, cost = min(2 * pairs, candidates), CORE_SECONDS
    first = candidates * experiment.compare.degree // 2
    said = f"about {pairs:,} borderline documents to ask about"
    yield Line("borderline", said, 2.0, pairs * _ROW_BYTES["comparison"])
    more = of_pairs(experiment, asked, pairs)
    yield _judging(experiment.judge, pairs, documents, more, "validate", experiment.distill)
    seconds = (first + pairs) * cost["rate a comparison"] + 10.0
    yield Line("refit", f"{candidates:,} ratings", seconds, candidates * _ROW_BYTES["rating"])


def _distilling(experiment: Experiment, ensemble: JudgeConfig, train: int, labels: Sequence[Cost]) -> Iterator[Line]:
    """What comes before a distilled judge can be asked: pairs, what the ensemble says of them, and training."""
    config, pairs = experiment.distill, experiment.distill.sample.pairs
    yield Line("sample", f"{pairs:,} pairs of {train:,} queries", 2.0, pairs * _ROW_BYTES["comparison"])
    yield _judging(ensemble, pairs, 2 * pairs, labels, "label")
    learned = round((1 - DEV_SHARE - TEST_SHARE) * pairs)
    seen = config.max_steps * config.per_step if config.max_steps else round(config.epochs * learned)
    inputs = seen * (1 if config.form == "pairwise" else 2)
    work = f"{inputs:,} inputs forward and back, of at most {config.max_tokens:,} tokens each"
    read = 2 * (pairs - learned) * len(config.dev_points) * config.max_tokens * CORE_SECONDS["score a token"]
    yield Line("distill", work, inputs * config.max_tokens * CORE_SECONDS["train a token"] + read, 9e7)


def lines(
    experiment: Experiment,
    counts: dict[str, int],
    asked: Sequence[Cost] = (),
    borderline: int | None = None,
    labels: Sequence[Cost] = (),
) -> Iterator[Line]:
    """The work of every stage; `asked`: what judges that read prompts cost, where that is known; `labels`: what those
    of the ensemble do.

    borderline: pairs of the second round, None where there is none.
    """
    for line in _lines(experiment, counts, asked, borderline, labels):
        parts = _PARTS.get(line.stage, 0) * experiment.execution.buckets
        yield replace(line, files=line.files + parts + 1)  # and its manifest


def _lines(
    experiment: Experiment,
    counts: dict[str, int],
    asked: Sequence[Cost],
    borderline: int | None,
    labels: Sequence[Cost],
) -> Iterator[Line]:
    queries, train = counts["train"] + counts["dev"] + counts["test"], counts["train"]
    candidates = train * min(experiment.retrieve.candidates, counts["documents"])
    file, pairs, cost = experiment.compare.path, comparisons(experiment, counts), CORE_SECONDS
    shards = -(-counts["documents"] // experiment.corpus.shard_documents)
    read = f"read {counts['documents']:,} documents, {queries:,} queries"
    kept = counts["documents"] * _ROW_BYTES["text"]
    yield Line("ingest", read, 2.0 + counts["documents"] * cost["read a document"], kept, files=shards)
    yield _retrieving(experiment, counts, candidates, shards)
    if experiment.ensemble is not None:
        yield from _distilling(experiment, experiment.ensemble, train, labels)
    each = f"{experiment.compare.degree} per document"
    yield Line(
        "compare",
        f"{pairs:,} pairs, {each}" if file is None else f"at most {pairs:,} pairs of {file}",
        pairs * cost["choose a comparison"],
        pairs * _ROW_BYTES["comparison"],
    )
    yield _judging(experiment.judge, pairs, candidates, asked, distill=experiment.distill)
    seconds = pairs * cost["rate a comparison"] + 10.0
    yield Line("rate", f"{train:,} fits, {candidates:,} ratings", seconds, candidates * _ROW_BYTES["rating"])
    if borderline is not None:
        yield from _validating(experiment, candidates, borderline, asked)
    yield from _learning(experiment, counts, candidates)


def _retrieving(experiment: Experiment, counts: dict[str, int], candidates: int, shards: int) -> Line:
    """Every shard leaves its best of each query for the merge, which grows with the shards; what survives, its text."""
    config, cost, documents = experiment.retrieve, CORE_SECONDS, counts["documents"]
    held_out = counts["dev"] + counts["test"]
    queries = counts["train"] + held_out
    hits = queries * min(config.depth, documents // shards) * shards * len(config.searchers)
    texts = candidates + counts["train"] * config.random_negatives + held_out * config.depth
    work = f"embed {documents + queries:,} texts, {queries:,} searches of {shards:,} shards, {candidates:,} candidates"
    seconds = (documents + queries) * cost["embed a document"]
    seconds += queries * documents * cost["search a document for a query"]
    # of hits and texts that are exchanged nothing is kept, but while it runs they are there
    exchanged = hits * _ROW_BYTES["hit"] + texts * _ROW_BYTES["text"]
    runs = held_out * config.depth * (len(config.retrievers) + 1) * _ROW_BYTES["run"]
    indexes, files = _indexes(config, documents, shards)
    files += 2 * shards + experiment.execution.buckets
    if "late" in config.retrievers:
        pooled = min(config.depth * len(config.searchers), documents)  # of a query, at most
        pairs = queries * pooled
        work += f", {pairs:,} pairs scored by late interaction"
        # a shard encodes the queries that have a document in it
        seconds += min(documents, pairs) * cost["embed a document"]
        seconds += queries * min(shards, pooled) * cost["embed a query of 32 tokens"]
        seconds += pairs * cost["score a pair by its tokens"]
        exchanged += 2 * pairs * _ROW_BYTES["hit"]
        files += shards + experiment.execution.buckets
    kept = indexes + runs + candidates * _ROW_BYTES["candidate"] + texts * _ROW_BYTES["text"]
    return Line("retrieve", work, seconds, kept + exchanged, files=files)


def _indexes(config: RetrieveConfig, documents: int, shards: int) -> tuple[int, int]:
    """Bytes and files of what is kept of shards: counts of words, vectors, Lucene's and approximate indexes."""
    size = files = 0
    for name in config.searchers:
        size += documents * _INDEX_BYTES[name]
        files += shards * _INDEX_FILES[name]
    if "dense" in config.searchers:
        index = config.dense.index
        size -= documents * _INDEX_BYTES["dense"] // 2 if config.dense.stored == "float16" else 0
        if isinstance(index, IvfPqIndex):
            size += documents * (index.code_bytes + 8)
        elif isinstance(index, HnswIndex):
            size += documents * (_INDEX_BYTES["dense"] + 8 * index.links + 8)
        files += 2 * shards if index.kind != "flat" else 0
    return size, files


def _learning(experiment: Experiment, counts: dict[str, int], candidates: int) -> Iterator[Line]:
    """From the choice of negatives to the report."""
    train, cost, tokens = counts["train"], CORE_SECONDS, experiment.train.max_tokens
    listed = 1 + experiment.mine.negatives + experiment.mine.random_negatives + experiment.mine.rated_extra
    work, seconds = f"about {train:,} examples of {listed} documents", 1.0 + train * cost["mine a query"]
    if experiment.mine.pointwise is not None:
        work += f", {candidates:,} of at most {ENCODER_TOKENS} tokens scored by {experiment.mine.pointwise}"
        seconds += candidates * ENCODER_TOKENS * cost["score a token"]
    yield Line("mine", work, seconds, train * _ROW_BYTES["example"])
    yield _training(experiment, train * listed, listed, tokens)
    held_out = counts["dev"] + counts["test"]
    scored = held_out * min(experiment.rerank.depth, counts["documents"])
    seconds = scored * (experiment.rerank.max_tokens or tokens) * cost["score a token"]
    yield _reranking(experiment, counts["test"], scored, seconds)
    seconds = 0.6 + counts["test"] * cost["measure a query"]
    kept = held_out * experiment.retrieve.depth * _ROW_BYTES["run"]
    yield Line("evaluate", f"{counts['test']:,} test queries", seconds, kept)


def _training(experiment: Experiment, examples: int, listed: int, tokens: int) -> Line:
    """On the cluster's cores; on GPUs where they are asked for, and the model's size and their speed are known."""
    train, execution, plan = experiment.train, experiment.execution.train, experiment.plan
    pairs = train.max_steps * train.lists_per_step * listed if train.max_steps else int(train.epochs * examples)
    line = Line("train", f"{pairs:,} pairs forward and back", pairs * tokens * CORE_SECONDS["train a token"], 9e7)
    hours = gpu_hours(3.0 * pairs * tokens, plan.parameters.get(as_written(train.model), 0.0) * 1e9, plan.gpu)
    if not execution.use_gpu or not hours:
        return line
    return replace(line, seconds=0.0, gpu_hours=hours, limited=hours * 3600 / execution.num_workers)


def _reranking(experiment: Experiment, test: int, pairs: int, seconds: float) -> Line:
    """Peers that are models count as much as ours, whatever their size; those behind servers by their calls."""
    config = experiment.rerank
    models = 1 + sum(peer.endpoint is None for peer in config.peers)
    work = f"score {pairs:,} pairs" + (f" with {models} models" if models > 1 else "")
    for peer in config.peers:
        if peer.endpoint is not None:
            calls = test * -(-config.depth // peer.endpoint.documents_per_call)
            work += f"; at most {calls:,} calls to {peer.endpoint.base_url} for {peer.name}"
    return Line("rerank", work, models * seconds, (1 + len(config.peers)) * pairs * _ROW_BYTES["run"])


def _rows(file: Path) -> int:
    """Rows of a file of preferences, usable or not: it has no more pairs."""
    return sum(rows.table.num_rows for rows in formats.read_batches(file, ("query_id",)))
