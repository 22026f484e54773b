"""Rerankers trained on one collection and tested on all: what they keep elsewhere, with intervals and paired tests.

A source is a collection that was trained on, a target one that is tested; a source may have several models, each
trained on a part of it. Letters: Q queries of a target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anmi_ray.errors import DataError
from anmi_ray.evaluation.replicates import Contrast, contrast, family, smallest_difference

HOME = "in-domain"
Reals = NDArray[np.float64]
Cells = Mapping[tuple[str, int], Mapping[str, Mapping[str, float]]]
"""(target, part of its queries) -> system -> query -> value."""
Table = Mapping[tuple[str, str], Contrast]
"""(system or source, target or reference) -> how it differs."""


@dataclass(frozen=True)
class Values:
    """float64[Q] by (system or source, target), queries in one order per target.

    A source's value of a query is the mean of its models that were tested on it.
    """

    sources: tuple[str, ...]
    others: tuple[str, ...]
    of: Mapping[tuple[str, str], Reals]

    @property
    def queries(self) -> dict[str, int]:
        """Tested queries by target."""
        return {target: len(self.of[target, target]) for target in self.sources}


def values_of(cells: Cells, models: Mapping[str, Sequence[str]], others: Sequence[str]) -> Values:
    """Join the cells: `models` names the systems of every source, `others` the systems that were trained on none.

    Every source is a target. At home a model's cell is left out where its train queries were; some model must be left.
    Raises DataError where a query has no value of a system, naming both.
    """
    found: dict[tuple[str, str], list[Reals]] = {}
    for (target, part), by_system in cells.items():
        ids = sorted({query for values in by_system.values() for query in values})
        for name, systems in {**{other: [other] for other in others}, **models}.items():
            there = [by_system[system] for system in systems if system in by_system]
            lost = [query for query in ids if any(query not in values for values in there)]
            if lost or not there or not ids:
                raise DataError(
                    f"{name} has no value of {f'query {lost[0]}' if lost else 'any query'}",
                    f"{target}, part {part}",
                    "run again, which makes what is missing; or leave the system out",
                )
            rows = [[values[query] for query in ids] for values in there]
            found.setdefault((name, target), []).append(np.mean(rows, axis=0))
    return Values(tuple(models), tuple(others), {key: np.concatenate(parts) for key, parts in found.items()})


def contrasts(values: Values, systems: Sequence[str], reference: str, rounds: int = 10_000) -> Table:
    """Every one of `systems` less `reference` on every target, Holm over all; `HOME`: less the target's own models."""
    keys = [(system, target) for system in systems for target in values.sources]
    keys = [key for key in keys if not (reference == HOME and key[0] == key[1])]
    rows = [
        contrast(system, reference, [_difference(values, system, reference, target)], rounds) for system, target in keys
    ]
    return dict(zip(keys, family(rows), strict=True))


def elsewhere(values: Values, references: Sequence[str], rounds: int = 10_000) -> Table:
    """Every source on all targets but its own, queries counted alike, less each reference; Holm over the sources."""
    found: dict[tuple[str, str], Contrast] = {}
    for reference in references if len(values.sources) > 1 else ():
        rows = []
        for source in values.sources:
            targets = [target for target in values.sources if target != source]
            strata = [_difference(values, source, reference, target) for target in targets]
            rows.append(contrast(source, reference, strata, rounds))
        found |= {(row.system, reference): row for row in family(rows)}
    return found


def _difference(values: Values, system: str, reference: str, target: str) -> Reals:
    """float64[1, Q]."""
    return (values.of[system, target] - values.of[target if reference == HOME else reference, target])[None]


def levels(values: Values, rounds: int = 10_000) -> str:
    """Every system on every target with its interval over queries, in markdown; at home in brackets."""
    rows = []
    for name in (*values.others, *values.sources):
        cells = []
        for target in values.sources:
            level = contrast(name, "", [values.of[name, target][None]], rounds)
            text = f"{level.difference:.3f} [{level.low:.3f}, {level.high:.3f}]"
            cells.append(f"({text})" if name == target else text)
        rows.append([_label(values, name), *cells])
    return _markdown(["system", *values.sources], rows)


def differences(values: Values, table: Table, level: float = 0.05) -> str:
    """A table of `contrasts` in markdown; bold: told apart after Holm's correction."""
    names = dict.fromkeys(system for system, _ in table)
    rows = [[_label(values, name), *(_cell(table.get((name, t)), level) for t in values.sources)] for name in names]
    return _markdown(["system", *values.sources], rows)


def pooled(values: Values, table: Table, level: float = 0.05) -> str:
    """A table of `elsewhere` in markdown; bold: told apart after Holm's correction."""
    references = list(dict.fromkeys(reference for _, reference in table))
    rows = []
    for source in values.sources:
        found = [table[source, reference] for reference in references]
        rows.append([_label(values, source), str(found[0].queries), *(_cell(one, level) for one in found)])
    return _markdown(["system", "queries elsewhere", *(f"less {name}" for name in references)], rows)


def detectable(
    sds: Mapping[str, float], queries: Mapping[str, int], comparisons: int, level: float = 0.05, power: float = 0.8
) -> str:
    """The smallest difference that the paired test finds on each target, and what that rests on, in markdown."""
    rows = []
    for target, count in queries.items():
        smallest = smallest_difference({target: sds[target]}, {target: count}, comparisons, level, power)
        rows.append([target, str(count), f"{sds[target]:.3f}", f"{smallest:.3f}"])
    return _markdown(["target", "test queries", "sd of a query's difference", "smallest difference"], rows)


def observed_sds(table: Table) -> dict[str, float]:
    """Root mean square over a table's systems of the sd of per-query differences, by target."""
    squares: dict[str, list[float]] = {}
    for (_, target), one in table.items():
        squares.setdefault(target, []).append(one.query_sd**2)
    return {target: float(np.sqrt(np.mean(found))) for target, found in squares.items()}


def _label(values: Values, name: str) -> str:
    return f"trained on {name}" if name in values.sources else name


def _cell(one: Contrast | None, level: float) -> str:
    if one is None:
        return ""
    return f"**{one}**" if one.p_holm < level else str(one)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
