"""Tables and settings that a notebook hands over: taken, or refused in one message that says what is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import anmi_ray
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.rating import rate_preferences

TABLE = {"query_id": ["q"] * 2, "doc_a": ["x", "y"], "doc_b": ["y", "z"], "preference": [0.9, 0.6]}
ROWS = [dict(zip(TABLE, values, strict=True)) for values in zip(*TABLE.values(), strict=True)]
TWICE = pa.table([[*TABLE["query_id"]], *TABLE.values()], names=["query_id", *TABLE])
Taker = Callable[[Any], Any]


@pytest.fixture(params=["rate", "audit", "rate_preferences"])
def taker(request: pytest.FixtureRequest) -> Taker:
    takers: dict[str, Taker] = {
        "rate": lambda table: anmi_ray.rate(table, prior=1.0).ratings,
        "audit": lambda table: anmi_ray.audit(table).figures["judges"],
        "rate_preferences": lambda table: rate_preferences(table, RateConfig(prior=1.0)).ratings,
    }
    return takers[request.param]


@pytest.mark.parametrize("table", [TABLE, pd.DataFrame(TABLE), pa.RecordBatch.from_pydict(TABLE)], ids=type)
def test_what_arrow_makes_a_table_of_is_taken(table: Any, taker: Taker) -> None:
    assert taker(table) == taker(pa.table(TABLE))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (None, "no table can be made of NoneType"),
        (3, "no table can be made of int"),
        (np.zeros(3), "no table can be made of ndarray"),
        (pd.Series(["x"]), "no table can be made of Series"),
        (ROWS, "no table can be made of list"),
        ((row for row in ROWS), "no table can be made of generator"),
        ({**TABLE, "doc_a": ["x"]}, "expected length 2 but got length 1"),
        ({**TABLE, "doc_a": [1.0, 2.0]}, "ids must be text or integers"),
        ({**TABLE, "preference": [True, False]}, "preference holds true or false"),
        ({**TABLE, "query_id": [2**70] * 2}, "no table can be made of dict"),
        ({**TABLE, "preference": [10**400] * 2}, "no table can be made of dict"),
        ({**TABLE, "query_id": ["q", 1]}, "no table can be made of dict"),
        ({**TABLE, "query_id": [object()] * 2}, "no table can be made of dict"),
        ({**TABLE, "doc_a": ["\ud800"] * 2}, "no table can be made of dict"),
        ({**TABLE, "preference": [{"a": 1}] * 2}, "it must hold numbers"),
        ({**TABLE, 1: ["q"] * 2}, "no table can be made of dict"),
        ({}, "is empty"),
        (TWICE, "has several columns query_id"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_refused(table: Any, says: str, taker: Taker) -> None:
    with pytest.raises(DataError, match=says) as caught:
        taker(table)
    assert caught.value.place == "table"
    assert caught.value.remedy
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: rate_preferences(TABLE, {"prior": 1.0}), "config: expected a RateConfig, got dict"),  # type: ignore[arg-type]
        (lambda: anmi_ray.Run("absent", root=Path("nowhere")), "nowhere/runs/absent.json: no run of that name"),
    ],
)
def test_arguments_that_cannot_be(call: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        call()
