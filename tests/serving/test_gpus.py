"""A service on GPUs: what its processes take, and a machine that has not as many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.serve import Application

import anmi_ray
from anmi_ray.core.errors import ConfigError
from anmi_ray.serving.app import application
from anmi_ray.serving.settings import validated
from tests.commands import refused
from tests.models.tiny import WORDS, write_tiny_classifier
from tests.serving.running import serving


def bound(application: Application) -> Any:
    """The deployment that an application starts, with its arguments."""
    return application._bound_deployment  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (0.25, "cuda"), (1, "cuda")])
def test_each_process_that_scores_takes_its_share(gpus: float, device: str) -> None:
    settings = validated({"model": "folder", "gpus": gpus, "threads": 3})
    front = application(settings, None)
    scorer = bound(front).init_args[1]
    options = [bound(one).ray_actor_options for one in (front, scorer)]
    assert [one.get("num_gpus", 0) for one in options] == [0, gpus]
    assert [one["num_cpus"] for one in options] == [0, 3]
    assert bound(scorer).init_args[0].device == device
    assert bound(scorer)._deployment_config.max_surge_percent == (0 if gpus else 100)  # its memory may not hold two


@pytest.mark.parametrize("wrong", [{"gpus": -1}, {"gpus": 1.5}, {"gpus": 1e-5}, {"precision": "int8"}])
def test_shares_and_precisions_that_there_are_not(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"service, {next(iter(wrong))}"):
        validated({"model": "folder", **wrong})


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_without_a_gpu_it_is_refused() -> None:
    assert "a GPU to compute on: " in refused("serve", "quickstart", "--gpus", 1, "--port", 0)


@pytest.mark.parametrize(
    ("gpus", "most", "room"),
    [(1, 2, 2), (1, 3, 2), (0.5, 4, 4), (0.5, 5, 4), (0.6, 3, 2), (0.1, 20, 20), (0.1, 21, 20)],
)
def test_more_processes_than_gpus_have_room_for_are_refused(
    gpus: float, most: int, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine with two GPUs; who is not refused for them is told that there is no such run."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    flags = ("--port", 0, "--root", tmp_path, "--gpus", gpus, "--most-replicas", most)
    said = refused("serve", "quickstart", *flags)
    many = f"of {most} processes with {gpus:g} of a GPU each this machine has room for {room}"
    assert (many if most > room else "no run") in said


@pytest.mark.gpu
def test_scores_of_a_gpu_are_those_of_rerank(tmp_path: Path) -> None:
    model = write_tiny_classifier(tmp_path / "tiny-cross", ["relevant"])
    texts = [" ".join(words) for words in np.random.default_rng(0).choice(WORDS, (40, 12))]
    ranking = anmi_ray.rerank(model, "word1", texts, device="cpu")
    wanted = dict(zip(ranking["index"].to_pylist(), ranking["score"].to_pylist(), strict=True))
    with serving(model, tmp_path / "errors", "--gpus", "0.5", "--replicas", "2", "--threads", "1") as served:
        found = served.scores("word1", texts)
    assert found == pytest.approx([wanted[at] for at in range(len(texts))], abs=1e-4)
