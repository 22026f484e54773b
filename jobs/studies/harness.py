"""What all studies share: arguments, many small runs side by side, tables with intervals, and a page of results.

A study says its question, its systems, its measure and how its tables read. `carry_out` parses the command line, prints
the tables and writes OUT/<study>.md with OUT/<study>.json beside it: question, method, command, commit, date, machine,
tables. With `--out docs/results` that is the study's page in the documentation.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from rich.console import Console

from anmi_ray.cli.console import ConsoleReporter
from anmi_ray.config.base import Settings
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import read, validate_as
from anmi_ray.core import environment
from anmi_ray.core.errors import AnmiError, ConfigError
from anmi_ray.evaluation.replicates import Contrast, smallest_difference
from anmi_ray.pipeline import run as experiment
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.store import Artifact, Store, runs
from anmi_ray.tuning.campaign import alone
from jobs.studies.side_by_side import run_all

SettingsT = TypeVar("SettingsT", bound=Settings)


@dataclass(frozen=True)
class Study:
    """What a study says of itself; `method` and `reads` are Markdown."""

    name: str
    title: str
    question: str
    method: str
    reads: str


@dataclass(frozen=True)
class Table:
    """A table of a page: cells are text as it is shown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        r"""The table in Markdown, under its title.

        >>> print(Table("of letters", ("a", "b"), [("1", "2")]).markdown())
        of letters:
        <BLANKLINE>
        | a | b |
        |---|---|
        | 1 | 2 |
        """
        shown = ["|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in (self.columns, *self.rows)]
        return "\n".join([f"{self.title}:", "", shown[0], "|---" * len(self.columns) + "|", *shown[1:]])


@dataclass(frozen=True)
class Results:
    """What a study found: its tables, sentences below them, and its values as JSON."""

    tables: Sequence[Table]
    notes: Sequence[str] = ()
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])


def study(name: str, title: str, doc: str) -> Study:
    r"""A study from its module's docstring: the first line asks, the last paragraph, "To read: ...", says how to read.

    >>> found = study("letters", "Letters", "Which?\n\n    python -m letters\n\nAll are tried.\n\nTo read: aloud.\n")
    >>> found.question, found.method, found.reads
    ('Which?', 'All are tried.', 'aloud.')
    """
    question, *rest = doc.strip().split("\n\n")
    method = [part for part in rest if not part.startswith("    ")]
    return Study(name, title, question, "\n\n".join(method[:-1]), method[-1].removeprefix("To read: "))


def parser(of: Study, *, seeds: int | None = None, data: bool = False) -> argparse.ArgumentParser:
    """The arguments of all studies; `seeds` and `data` where the study has such."""
    made = argparse.ArgumentParser(prog=of.name, description=of.question)
    made.add_argument("--root", default="results", help="folder of artifacts and runs: what is there is not made again")
    made.add_argument("--out", type=Path, help="folder of the page of results; default: ROOT/studies")
    made.add_argument("--workers", type=int, default=environment.cores(), help="runs at once, a core each")
    if seeds is not None:
        made.add_argument("--seeds", type=int, default=seeds, help="repetitions with other seeds")
    if data:
        made.add_argument("--data", action="append", default=[], help="NAME=FOLDER of a collection in BEIR layout")
    return made


def carry_out(of: Study, given: argparse.Namespace, run: Callable[[], Results | None]) -> None:
    """Run, print the tables, write the page. A mistake of the user ends it in one line with 1, Ctrl-C with 130."""
    try:
        found = run()
    except AnmiError as error:
        sys.exit(f"{of.name}: {error}")
    except KeyboardInterrupt:
        print(f"\n{of.name}: interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    if found is not None:
        print("\n\n".join([*(table.markdown() for table in found.tables), *found.notes]))
        print(f"\n-> {write_page(of, found, given.out or Path(given.root) / 'studies')}")


def write_page(of: Study, found: Results, out: Path) -> Path:
    """Write OUT/<study>.md and OUT/<study>.json; the page's path."""
    known = environment.describe()
    how = {
        "command": shlex.join(["python", "-m", f"jobs.studies.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "commit": known["git"] or "unknown",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{known['cores']} cores ({known['processor']}), {known['memory_gb']:.0f} GiB, Python "
        f"{known['python']}, Ray {known['versions']['ray']}",
    }
    facts = [f"- {name.capitalize()}: {f'`{value}`' if name == 'command' else value}" for name, value in how.items()]
    page = [
        f"# {of.title}",
        f"> {of.question}",
        "\n".join([*facts, f"- Figures as data: [{of.name}.json]({of.name}.json)"]),
    ]
    page += ["## Method", of.method, "## Results", *(table.markdown() for table in found.tables), *found.notes]
    page += ["## How to read it", of.reads]
    tables = [{"title": one.title, "columns": one.columns, "rows": one.rows} for one in found.tables]
    record = {"study": of.name, "question": of.question, **how, "tables": tables, "notes": found.notes}
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**record, "values": found.values, "environment": known}, ensure_ascii=False, indent=1)
    (out / f"{of.name}.json").write_text(text + "\n", encoding="utf-8")
    (out / f"{of.name}.md").write_text("\n\n".join(page) + "\n", encoding="utf-8")
    return out / f"{of.name}.md"


def read_settings(kind: type[SettingsT], path: Path) -> SettingsT:
    """The settings of a YAML file. Raises ConfigError."""
    return validate_as(kind, read(path), str(path), "see the YAML files in jobs/studies")


def folders(options: Sequence[str], known: Iterable[str] = ()) -> dict[str, str]:
    """The folders of --data NAME=FOLDER by name; `known`: the names that there are. Raises ConfigError."""
    found: dict[str, str] = {}
    for text in options:
        name, sign, folder = text.partition("=")
        if not sign or not name or not folder or name in found:
            raise ConfigError(f"{text!r} is not NAME=FOLDER, or its name stands twice", "--data", "see --help")
        found[name] = folder
    allowed = list(known)
    if allowed and (strangers := sorted(set(found) - set(allowed))):
        raise ConfigError(
            f"no collection is called {', '.join(strangers)}", "--data", f"choose from {', '.join(allowed)}"
        )
    return found


def merged(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Settings, later layers over earlier ones, groups and their groups key by key; no layer's group is in the result.

    >>> merged([{"train": {"seed": 1, "epochs": 2}}, {"train": {"seed": 3}}])
    {'train': {'seed': 3, 'epochs': 2}}
    """
    content: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            groups = [cast("Mapping[str, Any]", one) for one in (content.get(key), value) if isinstance(one, Mapping)]
            content[key] = merged(groups) if isinstance(value, Mapping) else value
    return content


def run_side_by_side(experiments: Sequence[Experiment], last: str, workers: int) -> dict[str, dict[str, Any]]:
    """Run what is missing up to stage `last`, a process a core; the record of every run by its name.

    What several runs share, up to their examples, is computed first, in this process alone.
    """
    console = Console(stderr=True)
    store = Store(experiments[0].execution.root)
    with alone(store, "studies"):
        records = {one.name: record for one in experiments if (record := _finished(store, one, last)) is not None}
        missing = [one for one in experiments if one.name not in records]
        console.print(f"{len(records)} of {len(experiments)} trainings are done", highlight=False)
        _make_shared(missing, store, console)
        for done in run_all(missing, last, workers):
            records[done.experiment.name] = done.record
            said = f"✓ {len(records)} of {len(experiments)}  {done.experiment.name}  {done.seconds:.0f} s"
            console.print(said, highlight=False)
    return records


def _finished(store: Store, one: Experiment, last: str) -> dict[str, Any] | None:
    """The record of a run that is complete with the settings that it has now."""
    fingerprint = resolve(one)[last].fingerprint
    record = runs.recorded(store, one.name)
    recorded = record is not None and record["stages"].get(last, {}).get("fingerprint") == fingerprint
    return record if recorded and Artifact(store, last, fingerprint).manifest() is not None else None


def make(experiments: Sequence[Experiment], last: str = "mine") -> None:
    """Run what is missing of every experiment up to its mined examples, or to another stage."""
    _make_shared(experiments, Store(experiments[0].execution.root), Console(stderr=True), last)


def _make_shared(missing: Sequence[Experiment], store: Store, console: Console, last: str = "mine") -> None:
    made = {resolve(one)[last].fingerprint: one for one in reversed(missing)}
    wanted = [one for name, one in reversed(made.items()) if Artifact(store, last, name).manifest() is None]
    if not wanted:
        return
    from anmi_ray.runtime.tasks import ray_session

    with ray_session(wanted[0].execution):
        for one in wanted:
            console.print(f"\n{one.name}, as far as it is shared", highlight=False)
            experiment.run(one, ConsoleReporter(console), last=last)


def work_side_by_side(
    tasks: Mapping[str, Mapping[str, Any]],
    work: Callable[[Mapping[str, Any]], dict[str, Any]],
    out: Store,
    workers: int,
) -> dict[str, dict[str, Any]]:
    """What `work` finds of every task, by name, as JSON under `out`; what is there for the same settings is not redone.

    Tasks hold JSON values only. Each runs in a process of its own, `workers` at a time, so that its memory can be told.
    """
    console = Console(stderr=True)
    records = {name: out.read_json(f"{name}.json") for name in tasks}
    missing = [name for name, record in records.items() if not record or record["settings"] != dict(tasks[name])]
    console.print(f"{len(tasks) - len(missing)} of {len(tasks)} trainings are done", highlight=False)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {pool.submit(work, tasks[name]): name for name in missing}
        for count, future in enumerate(as_completed(futures), 1):
            name = futures[future]
            records[name] = {"settings": dict(tasks[name]), "found": future.result()}
            out.publish_json(f"{name}.json", records[name])
            console.print(f"✓ {count} of {len(missing)}  {name}", highlight=False)
    return {name: records[name]["found"] for name in tasks}


def scopes_of(collections: Iterable[str]) -> dict[str, list[str]]:
    """All collections together, where there are several, and each for itself."""
    each = {name: [name] for name in collections}
    return ({"all collections": list(each)} if len(each) > 1 else {}) | each


def interval(one: Contrast, scale: float = 1.0, places: int = 3) -> str:
    """A level with its interval over queries."""
    return f"{scale * one.difference:.{places}f} [{scale * one.low:.{places}f}, {scale * one.high:.{places}f}]"


def contrasts_table(title: str, rows: Sequence[Contrast], level: float | None = None) -> Table:
    """A contrast a row, over queries and over queries and seeds; shares are of the reference's `level`, None: none."""
    cells = []
    for one in rows:
        over_seeds, p, share, sd = "", "", "", ""
        if one.wide_low is not None and one.wide_high is not None:
            over_seeds, p, sd = (
                f"[{one.wide_low:+.4f}, {one.wide_high:+.4f}]",
                f"{one.wide_p_holm:.3f}",
                f"{one.seed_sd:.4f}",
            )
            if level is not None:
                low, high = one.wide_low / level, one.wide_high / level
                share = f"{one.difference / level:+.1%} [{low:+.1%}, {high:+.1%}]"
        shares = [] if level is None else [share]
        name = f"{one.system} − {one.reference}"
        cells.append(
            (name, str(one), f"{one.p_holm:.4f}", over_seeds, p, *shares, f"{one.query_sd:.3f}", sd, one.verdict())
        )
    shares = [] if level is None else ["as a share"]
    columns = ("", "difference, 95 % over queries", "p, Holm", "over queries and seeds", "p, Holm", *shares,
               "sd of queries", "sd of seeds", "verdict")  # fmt: skip
    return Table(title, columns, cells)


def detectable_table(
    said: str,
    scopes: Mapping[str, Sequence[str]],
    sds: Mapping[str, float],
    queries: Mapping[str, int],
    comparisons: int,
    level: float = 0.05,
    power: float = 0.8,
) -> Table:
    """The smallest difference that a paired test finds in every scope (collections together), seeds averaged."""
    how = f"two-sided at {level:g}/{comparisons}, power {power:g}; the noise of seeds comes on top"
    rows = []
    for scope, within in scopes.items():
        smallest = smallest_difference({name: sds[name] for name in within}, queries, comparisons, level, power)
        said_sds = ", ".join(f"{sds[name]:.3f}" for name in within)
        rows.append((scope, str(sum(queries[name] for name in within)), said_sds, f"{smallest:.4f}"))
    columns = ("scope", "test queries", "sd of a query's difference", "smallest difference")
    return Table(f"Smallest difference to be detected, {said} ({how})", columns, rows)
