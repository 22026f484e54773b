"""Another model while a service answers: processes that load it, that cannot, that were lost and start anew."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import numpy as np
import pytest

from anmi_ray.api import reranking
from anmi_ray.core.errors import DataError
from anmi_ray.evaluation.relevance import RelevanceCurve
from anmi_ray.models.reranker import Reranker
from anmi_ray.serving import app, model_version
from anmi_ray.serving.model_version import ModelVersion
from anmi_ray.serving.queue import BatchQueue, Computed, What
from anmi_ray.serving.refusals import RefusalError
from anmi_ray.serving.settings import validated
from tests.evaluation.scored_pairs import relevance
from tests.models.tiny import write_tiny_classifier

LATER = 1.0  # seconds: what a process has read by then was read before


@dataclass
class Trial:
    """Two models that a link may point to, and processes that score with what it points to."""

    folder: Path
    released: threading.Event
    faults: list[str]

    @property
    def link(self) -> Path:
        return self.folder / "current"

    def place(self, name: str) -> None:
        """Make the link point to a model, at once."""
        (self.folder / "new").symlink_to(self.folder / name)
        os.replace(self.folder / "new", self.link)

    def replica(self) -> Any:
        made: Any = app.ScoringReplica.func_or_class
        return made(self.settings)

    def front(self, model: ModelVersion | None, *replicas: Any) -> Any:
        made: Any = app.Front.func_or_class
        return made.__mro__[1](self.settings, model, Handle(*replicas))

    @property
    def settings(self) -> Any:
        return validated({"model": str(self.link), "threads": 1, "batch_texts": 2})

    def wanted(self, after_s: float = 0.0) -> ModelVersion:
        return model_version.current(self.settings, time.time() + after_s)


class Handle:
    """Of processes that are asked in turn."""

    def __init__(self, *replicas: Any) -> None:
        self._replicas = itertools.cycle(replicas)

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *given: getattr(next(self._replicas), name)(*given))


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """The link points to the model before; the next one, `after`, is loaded once `released`, or fails."""
    for seed, name in enumerate(("before", "after")):
        folder = write_tiny_classifier(tmp_path / name, ["relevance"], seed)
        replace(relevance(), curve=RelevanceCurve("logistic", seed, 1.0)).write(folder)
    found = Trial(tmp_path, threading.Event(), [])
    found.place("before")
    found.released.set()
    load = reranking.load

    def loading(model: str, *given: Any) -> Reranker:
        if model.endswith("after"):
            assert found.released.wait(30)
            if found.faults:
                raise DataError(found.faults.pop(), model, "export it again")
        return load(model, *given)

    monkeypatch.setattr(reranking, "load", loading)
    return found


async def ask(replica: Any, wanted: ModelVersion | None = None, waits: bool = False) -> Computed:
    return await replica.compute("score", ["word1"], ["word2"], wanted, waits)


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await body()

    asyncio.run(main())


def test_batches_go_on_while_another_model_is_loaded(trial: Trial) -> None:
    replica = trial.replica()
    trial.place("after")
    trial.released.clear()
    wanted = trial.wanted(LATER)

    async def body() -> None:
        before = await ask(replica)
        during = await ask(replica, wanted)
        assert (during.values, during.model) == (before.values, before.model)
        waiting = asyncio.create_task(ask(replica, wanted, True))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        trial.released.set()
        after = await waiting
        assert after.values != before.values
        assert (await ask(replica)).model == after.model == wanted
        names = [(one.model.name, one.model.curve and one.model.curve.intercept) for one in (before, after)]
        assert names == [("before", 0.0), ("after", 1.0)]

    run(body)


def test_a_model_that_fails_leaves_the_one_before_its_curve_and_is_tried_again(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = trial.replica()
    trial.place("after")
    trial.faults += ["is torn"] * 2
    wanted = trial.wanted(LATER)

    async def body() -> None:
        before = await ask(replica)
        with pytest.raises(DataError, match="is torn"):
            await replica.load(wanted)
        for _ in range(3):
            found = await ask(replica, wanted, True)
            assert (found.values, found.model) == (before.values, before.model)
        assert trial.faults == ["is torn"], "not at every batch"
        monkeypatch.setattr(app, "_RETRY_S", 0.0)
        with pytest.raises(DataError, match="is torn"):
            await replica.load(trial.wanted(2 * LATER))
        assert (await ask(replica, wanted, True)).model.name == "after"

    run(body)


def test_a_process_that_was_lost_starts_with_what_the_link_points_to_and_the_others_follow(trial: Trial) -> None:
    wanted = trial.wanted(-LATER)
    old = trial.replica()
    trial.place("after")
    shutil.rmtree(trial.folder / "before")
    new = trial.replica()
    front = trial.front(wanted, old, new)

    async def body() -> None:
        found = [await front._compute("score", ["word1"], ["word2"]) for _ in range(4)]
        assert [one.model.name for one in found] == ["before", "after", "after", "after"]
        assert found[1].values == found[2].values == found[3].values
        assert len({one.model.asked_at for one in found[1:]}) == 1

    run(body)


def test_a_front_that_was_lost_hears_what_was_loaded_since(trial: Trial) -> None:
    first = trial.wanted(-LATER)
    replica = trial.replica()

    async def answered(front: Any, **more: Any) -> dict[str, Any]:
        transport = httpx2.ASGITransport(front._service.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://anmi") as client:
            sent = {"query": "word1", "documents": ["word2"], **more}
            found = await client.post("/v2/rerank", json=sent)
            assert found.status_code == 200, found.text
            health = (await client.get("/health")).json()
            assert health["model"] == found.json()["model"]
            return found.json()

    async def body() -> None:
        assert (await answered(trial.front(first, replica)))["model"] == "before"
        trial.place("after")
        assert await trial.front(first, replica).load(trial.wanted(LATER)) == ""
        lost = trial.front(first, replica)
        assert [(await answered(lost, min_relevance=0.1))["model"] for _ in range(2)] == ["after"] * 2
        trial.place("before")
        assert await lost.load(trial.wanted(2 * LATER)) == ""
        assert (await answered(lost))["model"] == "before"

    run(body)


def test_processes_with_different_models_give_no_ranking_together() -> None:
    asked = itertools.count()

    async def compute(what: What, queries: list[str], texts: list[str]) -> Computed:
        zero_N = np.zeros(len(texts), np.float32)
        return Computed(zero_N, np.ones(len(texts), np.int64), ModelVersion(asked_at=float(next(asked))))

    class Nobody:
        def batch(self, texts: int, tokens: int, seconds: float) -> None:
            pass

    async def body() -> None:
        batches = BatchQueue(compute, 2, 100, 1, 10.0, Nobody())
        assert len((await batches.computed("score", "q", ["a"] * 2)).tokens) == 2
        with pytest.raises(RefusalError) as refused:
            await batches.computed("score", "q", ["a"] * 4)
        assert [refused.value.status, refused.value.retry_after_s] == [503, 5]

    run(body)
