"""What is given to `rerank` in the place of what it takes is one message, before any model is looked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anmi_ray


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"query": 5}, "query: int is no text"),
        ({"query": None}, "query: NoneType is no text"),
        ({"texts": "one text"}, "texts: is one text, and each of its characters would be read as one\n.*write .texts."),
        ({"texts": None}, "texts: NoneType is no list of texts"),
        ({"texts": ["a", None]}, r"texts\[1\]: NoneType is no text"),
        ({"texts": (float("nan") for _ in range(2))}, r"texts\[0\]: float is no text"),
        ({"texts": ["a", "b\ud800"]}, r"texts\[1\]: holds half of a surrogate pair"),
        ({"threads": -1}, "threads: -1 is no number of threads"),
        ({"threads": "2"}, "threads: '2' is no number of threads"),
        ({"model": 5}, "model: int is no text"),
        ({"scores": [1.0, 2.0]}, "scores: list is no mapping from systems to their scores"),
        ({"scores": {1: [1.0]}}, "a system of scores: int is no text"),
        ({"scores": {"bm25": ["a"]}}, r"scores\['bm25'\]: no list of numbers can be made of it: could not convert"),
        ({"scores": {"bm25": [[1.0], [2.0, 3.0]]}}, r"scores\['bm25'\]: no list of numbers can be made of it: "),
        ({"scores": {"bm25": [10**400]}}, r"scores\['bm25'\]: no list of numbers can be made of it: "),
        ({"scores": {"bm25": torch.ones(1, requires_grad=True)}}, r"scores\['bm25'\]: no list of numbers .*grad"),
    ],
)
def test_what_rerank_does_not_take_is_said(given: dict[str, Any], said: str) -> None:
    arguments: dict[str, Any] = {"model": "nowhere", "query": "q", "texts": ["a"], **given}
    with pytest.raises(anmi_ray.AnmiError, match=f"^{said}"):
        anmi_ray.rerank(arguments.pop("model"), arguments.pop("query"), arguments.pop("texts"), **arguments)
