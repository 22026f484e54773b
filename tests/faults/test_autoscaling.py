"""An annotation run on a cluster that scales itself: judges' nodes come for it, one is taken away, all go after it."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.faults.scaling import MOST, annotate

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1800)]


def test_nodes_follow_the_backlog(prepared: Path, small_collection: Path, tmp_path: Path) -> None:
    # in a process of its own: it connects to that cluster, and this one may be connected to the Ray that tests share
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:
        told = own.submit(annotate, tmp_path, small_collection, prepared).result()
    assert told.status == 0, told.said
    counts = [(seen.seconds, seen.nodes.get("annotate", 0)) for seen in told.seen]
    assert max(count for _, count in counts) == MOST
    assert any(told.taken_s < at < told.ended_s and count < MOST for at, count in counts)  # it was missed
    assert any(told.taken_s < at < told.ended_s and count == MOST for at, count in counts)  # and another came
    assert counts[-1][1] == 0
    assert told.judgments == told.questions
    assert told.errors == 0
