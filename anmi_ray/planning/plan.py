"""`anmi plan`: calls, tokens, dollars and GPU hours of each stage, and where texts are sent, doing nothing.

A collection that is here is read and counted, and so are the tokens of prompts about it; for others, `plan` in the
settings gives their size, and nothing is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table

from anmi_ray.config.endpoint import EndpointConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core.errors import AnmiError, caught, combined
from anmi_ray.corpus.counts import CollectionCounts, of_manifest
from anmi_ray.judging import kinds
from anmi_ray.judging.spend import CallCost
from anmi_ray.pipeline import requirements
from anmi_ray.pipeline.resolve import changes, resolve, todo
from anmi_ray.pipeline.run import run_record
from anmi_ray.pipeline.stages import FIRST, stages_of
from anmi_ray.planning.prices import CallCosts
from anmi_ray.runtime.costs import COMPARED, StageCost, Workload
from anmi_ray.runtime.stage import Stage
from anmi_ray.stages.ingest import TRAIN_QUERIES
from anmi_ray.store import Store, runs

_COLUMNS = ("stage", "work", "calls", "million tokens", "GPU hours", "dollars", "state", "why")
_PLAIN_WIDTH = 200  # characters per line of a plan as text: no cell is folded
_NUMBERS = ("calls", "tokens", "gpu_hours", "dollars")  # of a StageCost

Calls = Callable[[Stage, int], Sequence[CallCost]]
Manifest = Callable[[Stage], Mapping[str, Any] | None]


@dataclass(frozen=True)
class Plan:
    """A run's plan; `print` shows it as text.

    blocks: lines, and a table for rich
    stages: name, work, state, calls, tokens, GPU hours and dollars of each stage
    problem: the error with which the run would fail, if one is known
    """

    blocks: list[str | Table]
    stages: list[dict[str, Any]]
    problem: AnmiError | None = None

    @property
    def lines(self) -> list[str]:
        """Return its lines."""
        return [block for block in self.blocks if isinstance(block, str)]

    def __str__(self) -> str:
        text = StringIO()
        console = Console(file=text, width=_PLAIN_WIDTH, soft_wrap=True, markup=False, emoji=False)
        for block in self.blocks:
            console.print(block, highlight=False)
        if self.problem is not None:
            console.print(str(self.problem), highlight=False, markup=False)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def plan(experiment: Experiment, offline: bool = False) -> Plan:
    """Return what each stage would do and cost. Reads the collection to count it; writes nothing.

    offline: do not contact judges' servers.
    """
    store = Store(experiment.execution.root)
    if experiment.plan.documents is not None:  # on paper: nothing is read
        size = experiment.plan
        resolved = {}
        collection = CollectionCounts(
            experiment.plan.documents, {"train": size.train, "dev": size.dev, "test": size.test}
        )
    else:
        with requirements.all_named(experiment, stages_of(experiment), offline):
            resolved = resolve(experiment)
            manifest = resolved[FIRST].artifact(store).manifest()
            collection = requirements.counts_of(experiment, math.inf) if manifest is None else of_manifest(manifest)
            assert collection is not None, "only a limit of time leaves a collection uncounted"
    execution = experiment.execution
    buckets = (resolved and runs.known_buckets(store)) or execution.buckets_on(execution.cpus)
    blocks: list[str | Table] = [
        f"{collection.documents:,} documents; queries: {collection.in_words}; {buckets:,} buckets"
    ]
    if resolved and (kept := runs.buckets_kept(store, execution)):
        blocks.append(kept)
    blocks += [*collection.notices(experiment), *_blind(experiment, collection)]
    counts = {"documents": collection.documents, **collection.queries}
    counts["dev_labelled"] = collection.labelled.get("dev", 0)
    calls = CallCosts(experiment, resolved, store)
    found = costs(
        experiment,
        counts,
        calls,
        lambda stage: resolved[stage.name].artifact(store).manifest() if resolved else None,
    )
    gpu_price = execution.gpu_dollars_hour or 0.0
    found = {name: replace(cost, dollars=cost.dollars + cost.gpu_hours * gpu_price) for name, cost in found.items()}
    states = dict.fromkeys(found, ("on paper", ""))
    if resolved:
        states = {name: (state, why) for name, state, why in changes(experiment, resolved)}
    to_do = [cost for name, cost in found.items() if states[name][0] != "complete"]
    sums = {number: sum(getattr(cost, number) for cost in to_do) for number in _NUMBERS}
    total = f"{sums['calls']:,} calls, {sums['tokens'] / 1e6:,.2f} million tokens"
    total += f", about {sums['gpu_hours']:,.1f} GPU hours" if sums["gpu_hours"] else ""
    total += f", about {sums['dollars']:,.2f} dollars" if sums["dollars"] else ""
    blocks += [_table(found, states), *calls.lines, f"to do: {total}; {sent(experiment)}"]
    rows: list[dict[str, Any]] = []
    for name, cost in found.items():
        numbers = {number: getattr(cost, number) for number in _NUMBERS}
        state, why = states[name]
        rows.append({"stage": name, "work": cost.work, **numbers, "state": state, "artifact": why})
    problems = list(requirements.of_collection(experiment, stages_of(experiment), collection))
    if resolved:
        problems += caught(run_record, store, experiment, resolved)
        problems += requirements.of_machine(experiment, [item.stage for item in todo(store, resolved)], offline)
    return Plan(blocks, rows, combined(problems))


def costs(
    experiment: Experiment,
    counts: Mapping[str, int],
    calls: Calls = lambda *_: (),
    manifest: Manifest = lambda _: None,
) -> dict[str, StageCost]:
    """Return the cost of each stage, in order.

    counts: documents, queries by split, and dev queries with a grade (dev_labelled).
    calls: costs of the language models of a stage's panel for a number of pairs, if known.
    manifest: a stage's, if its artifact is complete.
    """
    found: dict[str, StageCost] = {}
    for stage in stages_of(experiment):
        pairs = {role: found[name].pairs for role, name in stage.reads.items()}
        load = Workload(
            experiment=experiment,
            config=stage.config_of(experiment),
            documents=counts["documents"],
            train=counts["train"],
            dev=counts["dev"],
            test=counts["test"],
            dev_labelled=counts.get("dev_labelled", 0),
            pairs=pairs,
            calls=calls(stage, pairs[COMPARED]) if stage.asks else (),
            manifest=manifest(stage),
        )
        found[stage.name] = stage.cost(load)
    return found


def _table(found: Mapping[str, StageCost], states: Mapping[str, tuple[str, str]]) -> Table:
    """One row per stage; columns that are empty throughout are left out."""
    rows = [
        (
            name,
            cost.work,
            f"{cost.calls:,}" if cost.calls else "",
            f"{cost.tokens / 1e6:,.2f}" if cost.tokens else "",
            f"{cost.gpu_hours:,.1f}" if cost.gpu_hours else "",
            f"{cost.dollars:,.2f}" if cost.dollars else "",
            *states[name],
        )
        for name, cost in found.items()
    ]
    table = Table(box=None, pad_edge=False, header_style="bold")
    kept = [at for at in range(len(_COLUMNS)) if any(row[at] for row in rows)]
    for at in kept:
        table.add_column(_COLUMNS[at], justify="right" if 2 <= at <= 5 else "left", overflow="fold")
    for row in rows:
        table.add_row(*(row[at] for at in kept))
    return table


def sent(experiment: Experiment) -> str:
    """Describe which texts are sent where."""
    judges = _servers(experiment.judge, experiment.ensemble)
    assessors = _servers(experiment.assessors)
    peers = [peer.endpoint for peer in experiment.rerank.peers if peer.endpoint is not None]
    sent_to = []
    for texts, servers in (
        ("train queries and their candidates", judges),
        ("dev and test queries and their top", assessors),
        ("test queries and their top", peers),
    ):
        places = {server.base_url: server for server in servers}
        urls = (f"{url} ({'may be' if one.allow_external else 'must not be'} external)" for url, one in places.items())
        sent_to += [f"texts of {texts} are sent to {', '.join(urls)}"] if places else []
    return "; ".join(sent_to) or "nothing is sent outside this machine or cluster"


def _servers(*panels: JudgeConfig | None) -> list[EndpointConfig]:
    """Return the servers of the panels' judges."""
    judges = [kinds.of(judge) for panel in panels if panel is not None for judge in panel.judges]
    return [judge.server for judge in judges if judge.server is not None]


def _blind(experiment: Experiment, counts: CollectionCounts) -> Iterator[str]:
    """Warn that simulated judges know nothing about unlabelled train queries."""
    train = TRAIN_QUERIES.name
    blind = counts.queries[train] - counts.labelled.get(train, counts.queries[train])
    if blind and experiment.simulated and not counts.hidden:
        yield (
            f"{blind:,} train queries are not labelled: what simulated judges see there is similarity and noise alone "
            "(judge.truth)"
        )
