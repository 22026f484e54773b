"""The study of transfer's arithmetic: who is tested on what, and which differences a table tells apart."""

from __future__ import annotations

import numpy as np
import pytest

from anmi_ray.errors import DataError
from anmi_ray.evaluation import transfer
from anmi_ray.evaluation.replicates import contrast
from anmi_ray.identity import rng

MODELS = {"whole": ["whole-0"], "cut": ["cut-0", "cut-1"]}
QUERIES = {("whole", 0): ["a", "b", "c"], ("cut", 0): ["d", "e"], ("cut", 1): ["f", "g", "h"]}


def cells(seed: int = 0) -> dict[tuple[str, int], dict[str, dict[str, float]]]:
    """Values that name who gave them: nobody is tested on the part of `cut` that it was trained on."""
    found: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for (target, part), queries in QUERIES.items():
        there = ["hybrid", "whole-0", *(["cut-0", "cut-1"] if target == "whole" else [f"cut-{part}"])]
        found[target, part] = {
            system: {query: float(rng(system, query, seed).random()) for query in queries} for system in there
        }
    return found


def test_models_of_a_source_are_averaged_elsewhere_and_each_query_has_its_own_at_home() -> None:
    given = cells()
    values = transfer.values_of(given, MODELS, ["hybrid"])
    assert values.queries == {"whole": 3, "cut": 5}
    both = [np.mean([given["whole", 0][f"cut-{n}"][query] for n in (0, 1)]) for query in "abc"]
    assert values.of["cut", "whole"].tolist() == both
    home = [given["cut", 0]["cut-0"][query] for query in "de"] + [given["cut", 1]["cut-1"][query] for query in "fgh"]
    assert values.of["cut", "cut"].tolist() == home
    assert values.of["hybrid", "cut"].tolist() == [
        given["cut", n]["hybrid"][q] for n, q in zip([0, 0, 1, 1, 1], "defgh", strict=True)
    ]


@pytest.mark.parametrize("system", ["hybrid", "cut-1", "whole-0"])
def test_a_query_without_a_value_is_said(system: str) -> None:
    given = cells()
    del given["cut", 1][system]["g"]
    with pytest.raises(DataError, match=r"has no value of query g"):
        transfer.values_of(given, MODELS, ["hybrid"])


def test_a_source_without_a_model_on_a_target_is_said() -> None:
    given = cells()
    del given["cut", 0]["cut-0"]
    with pytest.raises(DataError, match="cut has no value of any query"):
        transfer.values_of(given, MODELS, ["hybrid"])


def many(shift: float) -> transfer.Values:
    """Three collections of 60 queries; the model of `a` is better than the hybrid by `shift` on all."""
    sources, of = ("a", "b", "c"), {}
    for target in sources:
        base = rng("base", target).random(60)
        of["hybrid", target] = base
        for source in sources:
            of[source, target] = base + rng("noise", source, target).normal(shift if source == "a" else 0, 0.1, 60)
    return transfer.Values(sources, ("hybrid",), of)


def test_holm_covers_the_whole_table_and_finds_what_is_there() -> None:
    table = transfer.contrasts(many(0.2), ["a", "b", "c"], "hybrid", rounds=2000)
    assert len(table) == 9
    smallest = min(one.p for one in table.values())
    assert min(one.p_holm for one in table.values()) == pytest.approx(9 * smallest)
    assert {system for (system, _), one in table.items() if one.p_holm < 0.05} == {"a"}
    assert sum(cell.startswith("**") for cell in cells_of(transfer.differences(many(0.2), table))) == 3


def cells_of(table: str) -> list[str]:
    return [cell.strip() for line in table.splitlines()[2:] for cell in line.strip("|").split("|")]


def test_against_the_models_at_home_there_is_no_diagonal() -> None:
    values = many(0.2)
    table = transfer.contrasts(values, values.sources, transfer.HOME, rounds=1000)
    assert set(table) == {(a, b) for a in values.sources for b in values.sources if a != b}
    assert table["a", "b"].difference == pytest.approx(np.mean(values.of["a", "b"] - values.of["b", "b"]))


def test_elsewhere_leaves_the_own_collection_out() -> None:
    values = many(0.2)
    table = transfer.elsewhere(values, ["hybrid", transfer.HOME], rounds=1000)
    of = [(values.of["a", target] - values.of["hybrid", target])[None] for target in ("b", "c")]
    one = contrast("a", "hybrid", of, 1000)
    found = table["a", "hybrid"]
    assert (found.difference, found.low, found.high, found.p) == (one.difference, one.low, one.high, one.p)
    assert found.queries == 120
    assert found.p_holm >= found.p
    alone = transfer.Values(("a",), ("hybrid",), values.of)
    assert transfer.elsewhere(alone, ["hybrid"]) == {}


def test_tables_have_a_row_a_system_and_a_column_a_target() -> None:
    values = many(0.0)
    lines = transfer.levels(values, rounds=500).splitlines()
    assert len(lines) == 2 + 4
    assert {line.count("|") for line in lines} == {5}
    assert lines[3].startswith("| trained on a | (")
    table = transfer.contrasts(values, ["a", "b", "c"], "hybrid", rounds=500)
    sds = transfer.observed_sds(table)
    assert sds["a"] == pytest.approx(0.1, rel=0.25)
    assert "| a | 60 |" in transfer.detectable(sds, values.queries, 9)
