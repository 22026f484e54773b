"""evaluate where dev says nothing: the weights of the fusion are even, which is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anmi_ray.config.evaluate import EvaluateConfig
from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages import evaluate
from anmi_ray.store import Artifact, Store


@pytest.mark.parametrize(("sweep", "fusion", "count"), [(None, True, 1), (None, False, 0), ({"queries": 9}, True, 0)])
def test_even_weights_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sweep: dict[str, Any] | None, fusion: bool, count: int
) -> None:
    store, notices = Store(str(tmp_path)), list[str]()
    artifact = Artifact(store, "evaluate", "0123456789abcdef")
    artifact.publish_json("fusion.json", sweep)
    monkeypatch.setattr(evaluate, "run_task", lambda *_: {"flows": []})
    context = Context(store, ExecutionConfig(root=str(tmp_path)), 1, 0, lambda *_, **__: None, notices.append)
    inputs: dict[str, Artifact] = {name: artifact for name in ("rerank", "retrieve", "ingest")}
    assert evaluate.run(artifact, inputs, EvaluateConfig(fusion=fusion), context) == {"flows": []}
    said = [text for text in notices if "no dev query has a relevant document: reranked+hybrid takes even" in text]
    assert len(said) == count
