"""`anmi queries`: queries made of documents alone."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anmi_ray.cli.flags import COMMAND_LINE, ConfigArg, OverrideArg, RootOption, overriding
from anmi_ray.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from anmi_ray.api.queries import MadeQueries
    from anmi_ray.config.experiment import Experiment

_SHOWN = 20  # queries that are printed


def queries(
    config: ConfigArg,
    overrides: OverrideArg = None,
    to: Annotated[Path | None, typer.Option("--to", help="folder to write: new, or empty")] = None,
    root: RootOption = None,
    number: Annotated[int, typer.Option("--number", min=1, help="queries to make, at most")] = 2000,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="say what the writer would be asked and what it costs, with the exact prompt"),
    ] = False,
) -> None:
    """Make train queries of documents alone: of their titles, first sentences, headings, key phrases and identifiers.

    Where queries.writer names a language model, it writes them instead, or beside them (queries.kinds).
    The folder is a collection in BEIR layout, whose documents lack the queries that stood in them, without labels.
    The collection's own queries and labels are not read. Another seed=NUMBER draws others.
    """
    from anmi_ray.api.queries import make_queries, preview_writing
    from anmi_ray.cli import console
    from anmi_ray.config.load import load

    experiment = load(config, overriding(overrides, root), documents_alone=True)
    out = console.stdout()
    if dry_run:
        for line in preview_writing(experiment, number):
            out.print(line, markup=False, highlight=False)
        return
    if to is None:
        raise ConfigError("--to names no folder", COMMAND_LINE, "say where the collection is written, or add --dry-run")
    made = make_queries(experiment, to, number, console.note)
    refused = f", {made.refused_documents:,} refused" if made.refused_documents else ""
    print(f"{made.documents:,} documents{refused}; {len(made.queries):,} queries\n")
    out.print(_counted(made))
    print()
    out.print(_sample(made))
    if experiment.simulated is not None:
        print("\nsimulated judges know nothing about these queries: similarity stands in for them in the next command")
    words = ["anmi", "run", config, *_settings(experiment, overrides or [], to, len(made.queries))]
    print(f"\nnext: {shlex.join([*words, *(['--root', root] if root else [])])}")


def _settings(experiment: Experiment, overrides: list[str], to: Path, queries: int) -> list[str]:
    """The overrides of a run over the folder that was written, those given here among them.

    Of the settings of `corpus`, the folder keeps those that say how many of its queries are used for what.
    """
    from anmi_ray.config.corpus import CorpusConfig
    from anmi_ray.config.load import run_name

    settings = [one for one in overrides if not one.startswith(("corpus.", "corpus=", "name="))]
    if experiment.simulated is not None:
        settings.append('judge={"judges": [{"kind": "similarity"}]}')
        settings.append("mine.anchors=confirmed")
    elif experiment.mine.anchors == "known":
        settings.append(f"mine.anchors={'confirmed' if experiment.judge.direct.judges else 'rated'}")
    given = experiment.corpus
    held_out = given.held_out("dev", queries) + given.held_out("test", queries)
    kept = ["split_seed", "shard_documents", *(f"max_{split}_queries" for split in ("train", "dev", "test"))]
    kept += ["unlabelled_dev", "unlabelled_test"] if 2 * held_out <= queries else []
    default = CorpusConfig()
    sizes = {name: getattr(given, name) for name in kept if getattr(given, name) != getattr(default, name)}
    corpus = {"reader": "beir", "path": str(to), **sizes}
    values = {"corpus": corpus, "name": run_name(to.resolve())}
    return [*settings, *(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())]


def _counted(made: MadeQueries) -> Table:
    """A row a kind: candidates, kept, and why others were left out."""
    from anmi_ray.cli import console

    table = console.table("kind", "candidates", "kept", "left out", right=("candidates", "kept"))
    for kind, counts in made.counts().items():
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.most_common() if reason != "kept")
        table.add_row(kind, f"{sum(counts.values()):,}", f"{counts['kept']:,}", reasons)
    return table


def _sample(made: MadeQueries) -> Table:
    """The first queries of each kind: their order is that of a hash."""
    from anmi_ray.cli import console

    table = console.table("kind", "query", "BM25's rank of its document", right=("BM25's rank of its document",))
    kinds = Counter(query.kind for query in made.queries)
    shown = Counter[str]()
    for query, rank in zip(made.queries, made.ranks, strict=True):
        shown[query.kind] += 1
        if shown[query.kind] <= _SHOWN // len(kinds):
            table.add_row(query.kind, query.text, str(rank))
    return table
