"""Preview the exact prompt that each judge would get about two documents; send nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray import corpus
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.corpus.counts import CollectionCounts
from anmi_ray.corpus.reader import Reader
from anmi_ray.judging import kinds
from anmi_ray.judging.prompt_builder import Preview, PromptBuilder, preview
from anmi_ray.stages import ingest


def preview_prompts(experiment: Experiment, query: str | None, first: str | None, second: str | None) -> Iterator[str]:
    """Yield lines to print. Without ids, use a train query and two of the first documents.

    If judges confirm anchors or measure held-out queries, show their prompts about the first document too. Raise
    ConfigError if no judge reads texts, DataError for an unknown id or an empty text.
    """
    ensemble = () if experiment.ensemble is None else kinds.prompted(experiment.ensemble)
    confirming = kinds.prompted(experiment.judge.direct) if experiment.mine.anchors == "confirmed" else ()
    assessing = kinds.prompted(experiment.assessors.direct) if experiment.assessors else ()
    assessing = tuple(judge for judge in assessing if judge not in confirming)
    judges = (*kinds.prompted(experiment.judge), *ensemble, *confirming, *assessing)
    if not judges:
        raise ConfigError(
            "no judge of this panel reads prompts",
            "distill.judge.judges" if experiment.ensemble else "judge.judges",
            "give a judge of kind api or vllm; `anmi init --example api-judge` writes an example",
        )
    reader = corpus.read(ingest.config_of(experiment))
    documents = _documents(reader.documents(), first, second, experiment.corpus.name)
    asked = _query(reader, query, experiment)
    names = [document["external_id"] for document in documents]
    texts = [f"{document['title']}\n{document['text']}".strip() for document in documents]
    yield f"query {asked['external_id']}; shown first: {names[0]}, second: {names[1]}"
    for judge in judges:
        server = judge.server
        try:
            builder = judge.prompt_builder()
        except ConfigError as error:
            if server:
                raise
            builder = PromptBuilder.load(judge.prompt)  # its model may be on the cluster only
            yield f"\njudge {judge.name}: tokenizer not loaded, so texts may be cut elsewhere ({error.message})"
        shown = preview(builder, asked["text"], *texts)
        where = f"{server.model} at {server.base_url}" if server else f"{judge.config.model} on the cluster"
        yield from said(f"judge {judge.name}", where, shown)


def said(who: str, where: str, shown: Preview) -> Iterator[str]:
    """Yield lines that show a prompt, and where it would be sent."""
    count = f"{shown.tokens:,} tokens{'' if shown.exact else ' at most, by an estimate from bytes'}"
    yield f"\n{who}: {where}, template {shown.template}, {count}"
    for what, parts in (("cut", shown.truncated), ("neutralised", shown.altered)):
        if parts:
            yield f"{what}: {', '.join(parts)}"
    for message in shown.messages:
        yield f"--- {message['role']}\n{message['content']}"


def _documents(tables: Iterator[pa.Table], first: str | None, second: str | None, path: str) -> list[dict[str, str]]:
    """Return the two documents. Read all: readers provide queries only afterwards."""
    named: dict[str, dict[str, str]] = {}
    others: list[dict[str, str]] = []
    for table in tables:
        wanted = pc.is_in(table["external_id"], value_set=pa.array([first, second], pa.string()))
        named |= {row["external_id"]: row for row in table.filter(wanted).to_pylist()}
        if len(others) < 2:
            others += table.filter(pc.invert(wanted)).slice(0, 2).to_pylist()
    chosen = []
    for name in (first, second):
        if name is not None and name not in named:
            raise DataError(f"unknown document {name}", path, "give an _id of its corpus")
        if name is None and not others:
            raise DataError("has fewer than two documents", path, "a judge compares two")
        chosen.append(named[name] if name is not None else others.pop(0))
    return chosen


def _query(reader: Reader, name: str | None, experiment: Experiment) -> dict[str, str]:
    queries = reader.queries()
    kept = queries.filter(pc.equal(queries["external_id" if name else "split"], name or "train"))
    remedy = "give an id: --query ID"
    if not kept.num_rows and name:
        raise DataError(f"unknown query {name}", experiment.corpus.name, remedy)
    if not kept.num_rows:
        known = (reader.left_out, (), 0, reader.over_maximum, reader.held_out)
        raise CollectionCounts(0, {}, {}, *known).missing("judge", "train", remedy, experiment.corpus)
    return kept.slice(0, 1).to_pylist()[0]
