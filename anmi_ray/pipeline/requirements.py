"""Requirements of a run on this machine, its judges' servers and its collection, checked before Ray starts.

Every problem is reported, not only the first. `preflight` checks the nodes of a cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from anmi_ray import corpus
from anmi_ray.config.endpoint import ServerConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.core import environment
from anmi_ray.core.environment import GIB, LEAST_DISK
from anmi_ray.core.errors import AnmiError, DataError, StoreError, refuse
from anmi_ray.corpus.counts import CollectionCounts, counted
from anmi_ray.judging import kinds
from anmi_ray.judging.http import connections
from anmi_ray.pipeline.stages import RERANK, TRAIN
from anmi_ray.runtime.stage import Stage
from anmi_ray.stages import ingest, judge
from anmi_ray.store import Store

_READING_S = 1.5  # limit of reading a collection before ingest counts it


@contextmanager
def all_named(experiment: Experiment, stages: Sequence[Stage], offline: bool) -> Iterator[None]:
    """Add what these stages lack to an error inside, which keeps them from being resolved."""
    try:
        yield
    except AnmiError as error:
        others = list(of_machine(experiment, stages, offline))
        if not others:
            raise
        refuse([error, *others])


def of_machine(experiment: Experiment, stages: Sequence[Stage], offline: bool = False) -> Iterator[AnmiError]:
    """Yield missing packages, keys, servers and disk space; for a run on a cluster only problems of the settings.

    offline: send no request.
    """
    for stage in stages:
        yield from stage.check(stage, experiment)
    if experiment.execution.address is not None:
        return
    yield from of_servers(servers_of(experiment, stages), offline)
    if (root := Store(experiment.execution.root).local) is not None:
        folder, free = environment.free_disk(root)
        if free < LEAST_DISK:
            what = f"expected {LEAST_DISK / GIB:,.1f} GiB of free disk, got {free / GIB:,.1f}"
            yield StoreError(what, str(folder), "free space, or give another root with --root")


def servers_of(experiment: Experiment, stages: Iterable[Stage]) -> list[ServerConfig]:
    """Return the servers that these stages send texts to, each once."""
    found: list[ServerConfig | None] = []
    for stage in stages:
        if stage.asks:
            found += [kinds.of(one).server for one in stage.panel(experiment).judges]
        if stage.name == RERANK:
            found += [peer.endpoint for peer in experiment.rerank.peers]
    return list({(one.base_url, one.model, one.key_env, one.allow_external): one for one in found if one}.values())


def of_servers(servers: Sequence[ServerConfig], offline: bool = False) -> list[AnmiError]:
    """Return errors of unset keys, forbidden addresses and, unless offline, servers that do not answer."""
    if not servers:
        return []
    check = connections.check if offline else connections.check_reachable

    async def ask_all() -> list[BaseException | None]:
        return await asyncio.gather(*map(check, servers), return_exceptions=True)

    with ThreadPoolExecutor(1) as pool:  # a notebook's thread runs an event loop already
        found = pool.submit(asyncio.run, ask_all()).result()
    for error in found:
        if error is not None and not isinstance(error, AnmiError):
            raise error
    return [error for error in found if isinstance(error, AnmiError)]


def of_what_is_read(
    experiment: Experiment, check: Callable[[CollectionCounts], Iterable[AnmiError]]
) -> Iterator[AnmiError]:
    """Yield what `check` finds in a collection that can be read quickly, or the error of reading it.

    On a cluster the nodes read it, so nothing is checked here.
    """
    if experiment.execution.address is not None:
        return
    try:
        counts = counts_of(experiment)
    except AnmiError as error:
        yield error
    else:
        yield from () if counts is None else check(counts)


def counts_of(experiment: Experiment, most_s: float = _READING_S) -> CollectionCounts | None:
    """Count the collection; None if reading it takes more than `most_s` seconds.

    Raises DataError.
    """
    begun = time.monotonic()
    reader = corpus.read(ingest.config_of(experiment))
    documents = 0
    for table in reader.documents():
        documents += table.num_rows
        if time.monotonic() - begun > most_s:
            return None
    return counted(reader, documents, reader.queries(), reader.qrels(), reader.hidden_qrels())


def of_collection(experiment: Experiment, stages: Sequence[Stage], counts: CollectionCounts) -> Iterator[AnmiError]:
    """Yield errors of queries and labels that these stages lack."""
    for stage in stages:
        if stage.split is not None and not counts.queries.get(stage.split.name):
            yield counts.missing(stage.name, stage.split.name, stage.split.remedy, experiment.corpus)
    split = ingest.TRAIN_QUERIES.name
    trains = counts.queries.get(split) and any(stage.name == TRAIN for stage in stages)
    if trains and experiment.mine.anchors == "known":
        remedy = "set mine.anchors: confirmed (judges are asked) or rated, or give labels of train queries (qrels)"
        yield from unlabelled(counts, split, "mine.anchors: known, which trains on them alone", remedy)
    # simulated judges know labels alone
    asking = [stage for stage in stages if stage.asks and stage.panel(experiment).simulated]
    for blind in sorted({"test" if stage.name == judge.ASSESS.name else split for stage in asking}):
        if counts.queries[blind] and not counts.hidden:
            remedy = "name one in judge.judges, or ask none: mine.anchors=retrieved evaluate.judged=none"
            yield from unlabelled(counts, blind, "judge: it is simulated, and knows labels alone", remedy)


def unlabelled(counts: CollectionCounts, split: str, place: str, remedy: str) -> Iterator[AnmiError]:
    """Yield an error if the collection has no labelled query of a split, if they were counted."""
    if counts.labelled and not counts.labelled.get(split):
        yield DataError(f"no {split} query is labelled", place, remedy)
