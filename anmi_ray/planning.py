"""`anmi plan`: what each stage would do and cost, doing nothing.

Rows follow from the settings and the collection's counts; seconds from per-row costs measured on two cores (they
scale with cores), and are there to tell minutes from days.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from anmi_ray import corpus, files
from anmi_ray.config.distill import DistillConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.judge import ApiJudgeConfig, EncoderJudgeConfig, JudgeConfig
from anmi_ray.experiment import Resolved, resolve
from anmi_ray.judging.encoder import tokens_read
from anmi_ray.prompt_costs import Cost, PromptJudge, costs, of_pairs
from anmi_ray.states import changes
from anmi_ray.store import Artifact, Store

# Core-seconds per row or token, measured by running the quickstart on two cores of an AMD EPYC with avx512_bf16.
CORE_SECONDS = {
    "embed a document": 0.015,
    "choose a comparison": 8e-5,
    "judge a pair in process": 9e-6,
    "ask an endpoint": 2e-3,  # this machine's part; the server's is its own
    "rate a comparison": 7e-6,
    "train a token": 4e-4,  # of pairs as long as max_tokens allows: most are shorter
    "score a token": 1.4e-4,
}
_ENCODER_TOKENS = 512  # that a classification model reads, where max_tokens does not say
# Share of candidates that are borderline (80 to 150 points) and not yet compared with their anchor, on the long side:
# .6 % by the quickstart's panel, .5 % by SciFact's, 1.3 % by the similarity judge on a small collection.
BORDERLINE = 0.015
_ROW_BYTES = {"run": 30, "candidate": 45, "text": 700, "comparison": 50, "judgment": 12, "rating": 60, "example": 500}


@dataclass(frozen=True)
class Line:
    """One stage's work: rows of what, calls to judges, core-seconds, bytes kept, dollars, seconds that limits take."""

    stage: str
    work: str
    seconds: float
    bytes: float
    dollars: float = 0.0
    limited: float = 0.0


def plan(experiment: Experiment) -> Iterator[str | Table]:
    """What a run would do, as text and a table. Reads the collection to count it; writes nothing."""
    resolved = resolve(experiment)
    counts = _counts(experiment, resolved["ingest"].fingerprint)
    cores = experiment.execution.cores
    states = {name: (state, why) for name, state, why in changes(experiment, resolved)}
    pairs, ensemble = _comparisons(experiment, counts), experiment.ensemble
    asked = costs(experiment, resolved, pairs)
    labels = costs(experiment, resolved, experiment.distill.sample.pairs, ensemble, "sample") if ensemble else []
    yield (
        f"{counts['documents']:,} documents; queries: {counts['train']:,} train, {counts['dev']:,} dev, "
        f"{counts['test']:,} test; {cores} cores, {experiment.execution.buckets} buckets"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, right in (
        ("stage", 0),
        ("work", 0),
        ("about", 1),
        ("keeps", 1),
        ("dollars", 1),
        ("state", 0),
        ("why", 0),
    ):
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    total = dollars = 0.0
    second = _borderline(experiment, counts, Store(experiment.execution.root), resolved)
    for line in lines(experiment, counts, asked, second, labels):
        state, why = states[line.stage]
        seconds = max(line.seconds / cores, line.limited)
        total += 0.0 if state == "complete" else seconds
        dollars += 0.0 if state == "complete" else line.dollars
        table.add_row(line.stage, line.work, f"{seconds:,.0f} s", _size(line.bytes), f"{line.dollars:.2f}", state, why)
    yield table
    for judge in (*labels, *asked):
        yield from judge.said()
    if ensemble:
        yield _saved(experiment, pairs + (second or 0))
    priced = f", about {dollars:,.2f} dollars" if dollars else ""
    yield f"to do: about {total / 60:,.1f} minutes on {cores} cores{priced}; {sent(experiment)}"


def sent(experiment: Experiment) -> str:
    """Which texts go where."""
    panels = [experiment.judge, *([experiment.ensemble] if experiment.ensemble else [])]
    judges = [judge.endpoint for panel in panels for judge in panel.reading if isinstance(judge, ApiJudgeConfig)]
    peers = [peer.endpoint for peer in experiment.rerank.peers if peer.endpoint is not None]
    said = []
    for texts, servers in (("train queries and their candidates", judges), ("test queries and their top", peers)):
        places = {server.base_url: server for server in servers}
        told = (f"{url} ({'may be' if one.allow_external else 'must not be'} external)" for url, one in places.items())
        said += [f"texts of {texts} are sent to {', '.join(told)}"] if places else []
    return "; ".join(said) or "nothing is sent outside this machine or cluster"


def _saved(experiment: Experiment, pairs: int) -> str:
    """What distilling saves of an ensemble's judgments, of so many pairs that it would be asked about."""
    few, judges = experiment.distill.sample.pairs, len(experiment.distill.judge.judges)
    share = f"{1 - few / pairs:.1%} of its judgments are saved" if few < pairs else "none of its judgments is saved"
    asked = f"about {few:,} pairs ({2 * few * judges:,} judgments), not about all {pairs:,}"
    return f"the ensemble (distill.judge) is asked {asked}: {share}"


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
    reading = [judge for judge in config.reading if isinstance(judge, PromptJudge)]
    encoders = [
        (judge.name, judge.form, tokens_read(judge) or _ENCODER_TOKENS)
        for judge in config.reading
        if isinstance(judge, EncoderJudgeConfig)
    ]
    encoders += [(judge.name, distill.form, distill.max_tokens) for judge in config.distilled if distill is not None]
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
    kept = calls * len(config.judges) * _ROW_BYTES["judgment"]
    limited = sum(cost.hours or 0.0 for cost in asked) * 3600
    return Line(stage, "; ".join(work), seconds, kept, sum(cost.dollars or 0.0 for cost in asked), limited)


def _comparisons(experiment: Experiment, counts: dict[str, int]) -> int:
    """Pairs that will be compared, in one order; of a file's, at most."""
    if experiment.compare.path is not None:
        return _rows(Path(experiment.compare.path).expanduser())
    candidates = min(experiment.retrieve.candidates, counts["documents"])
    return counts["train"] * candidates * experiment.compare.degree // 2


def _borderline(
    experiment: Experiment, counts: dict[str, int], store: Store, resolved: Mapping[str, Resolved]
) -> int | None:
    """Pairs that validation will ask about: as found, else a share of the candidates; None without validation."""
    if "borderline" not in resolved:
        return None
    manifest = Artifact(store, "borderline", resolved["borderline"].fingerprint).manifest()
    if manifest is not None:
        return next(flow["rows_out"] for flow in manifest["flows"] if flow["unit"] == "to ask about")
    return round(BORDERLINE * counts["train"] * min(experiment.retrieve.candidates, counts["documents"]))


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


def _counts(experiment: Experiment, ingest: str) -> dict[str, int]:
    """Documents, and queries by split: from the ingest artifact where there is one, else by reading the collection."""
    manifest = Artifact(Store(experiment.execution.root), "ingest", ingest).manifest()
    if manifest is not None:
        documents = next(flow["rows_out"] for flow in manifest["flows"] if flow["unit"] == "documents")
        return {"documents": documents, **manifest["splits"]}
    reader = corpus.read(experiment.corpus)
    documents = sum(table.num_rows for table in reader.documents())
    splits = reader.queries()["split"].to_pylist()
    return {"documents": documents, **{split: splits.count(split) for split in ("train", "dev", "test")}}


def _distilling(experiment: Experiment, ensemble: JudgeConfig, train: int, labels: Sequence[Cost]) -> Iterator[Line]:
    """What comes before a distilled judge can be asked: pairs, what the ensemble says of them, and training."""
    config, pairs = experiment.distill, experiment.distill.sample.pairs
    yield Line("sample", f"{pairs:,} pairs of {train:,} queries", 2.0, pairs * _ROW_BYTES["comparison"])
    yield _judging(ensemble, pairs, 2 * pairs, labels, "label")
    learned = round((1 - config.dev_share - config.test_share) * pairs)
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
    retrieve, degree = experiment.retrieve, experiment.compare.degree
    queries = counts["train"] + counts["dev"] + counts["test"]
    held_out, train = counts["dev"] + counts["test"], counts["train"]
    candidates = min(retrieve.candidates, counts["documents"])
    file, comparisons = experiment.compare.path, _comparisons(experiment, counts)
    listed = 1 + experiment.mine.negatives + experiment.mine.random_negatives + experiment.mine.rated_extra
    listed = min(listed, experiment.train.list_size or listed)
    steps = experiment.train.max_steps
    pairs = steps * experiment.train.lists_per_step * listed if steps else int(experiment.train.epochs * train) * listed
    scored = held_out * min(experiment.rerank.depth, counts["documents"])
    cost, tokens = CORE_SECONDS, experiment.train.max_tokens
    scored_tokens = scored * (experiment.rerank.max_tokens or tokens)
    yield Line("ingest", f"read {counts['documents']:,} documents, {queries:,} queries", 2.0, counts["documents"] * 500)
    yield Line(
        "retrieve",
        f"embed {counts['documents'] + queries:,} texts, {queries:,} searches, {train * candidates:,} candidates",
        (counts["documents"] + queries) * cost["embed a document"],
        queries * retrieve.depth * 3 * _ROW_BYTES["run"] + train * candidates * _ROW_BYTES["text"],
    )
    if experiment.ensemble is not None:
        yield from _distilling(experiment, experiment.ensemble, train, labels)
    yield Line(
        "compare",
        f"{comparisons:,} pairs, {degree} per document" if file is None else f"at most {comparisons:,} pairs of {file}",
        comparisons * cost["choose a comparison"],
        comparisons * _ROW_BYTES["comparison"],
    )
    yield _judging(experiment.judge, comparisons, train * candidates, asked, distill=experiment.distill)
    yield Line(
        "rate",
        f"{train:,} fits, {train * candidates:,} ratings",
        comparisons * cost["rate a comparison"] + 10.0,
        train * candidates * _ROW_BYTES["rating"],
    )
    if borderline is not None:
        yield from _validating(experiment, train * candidates, borderline, asked)
    work, seconds = f"about {train:,} examples of {listed} documents", 2.0
    if experiment.mine.pointwise is not None:
        work += f", {train * candidates:,} of at most {_ENCODER_TOKENS} tokens scored by {experiment.mine.pointwise}"
        seconds += train * candidates * _ENCODER_TOKENS * cost["score a token"]
    yield Line("mine", work, seconds, train * _ROW_BYTES["example"])
    yield Line("train", f"{pairs:,} pairs forward and back", pairs * tokens * cost["train a token"], 9e7)
    yield _reranking(experiment, counts["test"], scored, scored_tokens * cost["score a token"])
    yield Line("evaluate", f"{counts['test']:,} test queries", 5.0, held_out * retrieve.depth * _ROW_BYTES["run"])


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
    return sum(rows.table.num_rows for rows in files.read_batches(file, ("query_id",)))


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
