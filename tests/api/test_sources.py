"""What is no table of preferences is said so, whatever object it is."""

from __future__ import annotations

from typing import Any

import pytest

import anmi_ray
from anmi_ray.core.errors import DataError

GOOD: dict[str, Any] = {"query_id": ["q"], "doc_a": ["a"], "doc_b": ["b"], "preference": [1.0]}


@pytest.mark.parametrize(
    "change",
    [
        {"query_id": [2**70]},
        {"preference": [10**400]},
        {"query_id": ["q", 1]},
        {"query_id": [object()]},
        {"doc_a": ["a", "b"]},
        {"doc_a": ["\ud800"]},
        {"preference": [{"a": 1}]},
        {"preference": ["1_0"]},
        {1: ["q"]},
    ],
    ids=str,
)
def test_a_dict_that_is_no_table_is_a_message(change: dict[Any, Any]) -> None:
    for ask in (anmi_ray.rate, anmi_ray.audit):
        with pytest.raises(DataError) as caught:
            ask({**GOOD, **change})
        assert len(str(caught.value)) < 600
