"""Weights between the start and what was trained: what they are, which of them are exported, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from anmi_ray.config.learning import LoraConfig
from anmi_ray.config.train import TrainConfig
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.heads import merged
from anmi_ray.training.loop import Trained, train
from anmi_ray.training.module import best_share, copied, mix
from anmi_ray.training.task import DevSet
from tests.training.folder import FolderCheckpoints
from tests.training.test_loop import EXECUTION, InterruptedTrainingError, changed, curve, dev_set, die_after, start

# DeepSpeed calls collectives that torch has renamed.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def nearness(base: Path, config: TrainConfig, share: float) -> DevSet:
    """A dev set whose measure is best for the scores of the mix at `share` of what `config` trains."""
    model, data = start(base, config)
    begin = copied(model.network)
    dev, _ = dev_set(model)
    end = copied(train(model, data, None, config, EXECUTION).model.network)
    wanted, _ = start(base, config)
    mix(wanted.network, begin, end, share)
    target = wanted.scorer("float32").score_tokens(dev.tokens)

    def measure(score: NDArray[np.float32]) -> float:
        return -float(np.abs(score - target).max())

    return DevSet(dev.tokens, measure)


def run(base: Path, config: TrainConfig, dev: DevSet | None, **options: Any) -> tuple[Trained, list[str]]:
    said: list[str] = []
    model, data = start(base, config)
    return train(model, data, dev, config, EXECUTION, on_notice=said.append, **options), said


def equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return all(torch.equal(found[name].view(torch.uint8), value.view(torch.uint8)) for name, value in wanted.items())


@given(st.dictionaries(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.sampled_from([0.1, 0.2, 0.3]), min_size=1))
def test_the_best_share_is_the_largest_of_those_that_nothing_beats(dev: dict[float, float]) -> None:
    share = best_share(dev)
    assert all(value < dev[share] or (value == dev[share] and other <= share) for other, value in dev.items())


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.25, 0.75])
@pytest.mark.parametrize(("engine", "stage"), [("ddp", 0), ("deepspeed", 1), ("deepspeed", 3)])
def test_the_mix_that_is_best_on_dev_is_exported(base: Path, engine: str, stage: int, share: float) -> None:
    config = changed(engine=engine, zero_stage=stage, dev_points=(), max_steps=4)
    dev = nearness(base, config, share)
    begin = copied(start(base, config)[0].network)
    end = copied(run(base, config, None)[0].model.network)
    asked = changed(**config.model_dump() | {"interpolate": (0.0, 0.25, 0.75)})
    trained, said = run(base, asked, dev)
    assert (trained.share, trained.best_step) == (share, 4)
    assert [row["share"] for row in trained.shares] == [0.0, 0.25, 0.75, 1.0]
    assert trained.dev == max(row["dev"] or 0.0 for row in trained.shares) > -1e-6
    assert all(row["dev"] is None for row in trained.rows)
    found = copied(trained.model.network)
    for name, value in found.items():
        torch.testing.assert_close(value, (1 - share) * begin[name] + share * end[name], rtol=0, atol=1e-6)
    assert equal(found, begin) == (share == 0)
    assert len(said) == (share == 0)


def test_a_training_that_harms_exports_the_start_and_says_so(base: Path, tmp_path: Path) -> None:
    dev, worth = dev_set(start(base)[0])

    def measure(score: NDArray[np.float32]) -> float:
        return float(np.corrcoef(score, worth)[0, 1]) if np.ptp(score) > 0 else 0.0  # what is ruined may be constant

    dev = DevSet(dev.tokens, measure)
    good, _ = run(base, changed(max_steps=60), dev)
    assert good.dev is not None
    folder = good.model.export(tmp_path / "good")
    harmful = changed(learning_rate=1.0, head_learning_rate=1.0, interpolate=(0.0,))
    trained, [said] = run(folder, harmful, dev)
    assert equal(copied(trained.model.network), copied(good.model.network))
    assert trained.share == 0
    assert trained.dev is not None
    assert trained.dev == pytest.approx(good.dev, abs=1e-6)
    assert max(row["dev"] for row in trained.rows if row["dev"] is not None) < trained.dev
    assert said.startswith(f"nothing trained was better on dev than the start ({good.dev:.4f}")
    assert "train.interpolate" in said
    points = changed(learning_rate=1.0, head_learning_rate=1.0, dev_points=(0.0, 1.0))
    trained, [said] = run(folder, points, dev)
    assert equal(copied(trained.model.network), copied(good.model.network))
    assert trained.best_step == 0
    assert said.startswith(f"no step was better on dev than the start ({good.dev:.4f}")


def test_without_shares_or_without_dev_nothing_changes(base: Path) -> None:
    plain = changed()
    dev, _ = dev_set(start(base)[0])
    whole, _ = run(base, plain, dev)
    assert (whole.share, whole.shares) == (1.0, [])
    asked, said = run(base, changed(interpolate=(0.5,)), dev)
    assert curve(asked.rows) == curve(whole.rows)
    assert asked.shares[-1] == {"share": 1.0, "dev": whole.dev}
    assert asked.best_step == whole.best_step
    assert said == []
    alone, [notice] = run(base, changed(interpolate=(0.0,)), None)
    assert equal(copied(alone.model.network), copied(run(base, plain, None)[0].model.network))
    assert (alone.share, alone.shares, alone.dev) == (1.0, [], None)
    assert "train.interpolate" in notice
    assert "no dev query is judged" in notice


def test_a_window_of_gaps_moves_with_the_steps_where_dev_chooses_the_mix_alone(base: Path) -> None:
    window = {"curriculum": {"rule": "window"}, "dev_points": ()}
    dev, _ = dev_set(start(base)[0])
    asked, _ = run(base, changed(**window, interpolate=(0.5,)), dev)
    assert curve(asked.rows) == curve(run(base, changed(**window), None)[0].rows)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "stage"), [("ddp", 0), ("deepspeed", 2), ("deepspeed", 3)])
def test_a_resumed_run_exports_what_an_undisturbed_one_does(
    base: Path, tmp_path: Path, engine: str, stage: int
) -> None:
    config = changed(engine=engine, zero_stage=stage, interpolate=(0.0, 0.5))
    dev = nearness(base, changed(**config.model_dump() | {"interpolate": ()}), 0.5)
    whole, _ = run(base, config, dev)
    assert whole.share == 0.5
    execution = EXECUTION.model_copy(update={"checkpoint_minutes": 0.0})
    model, data = start(base, config)
    checkpoints = FolderCheckpoints(tmp_path)
    with pytest.raises(InterruptedTrainingError):
        train(model, data, dev, config, execution, checkpoints, on_row=die_after(8))
    resumed, _ = run(base, config, dev, checkpoints=checkpoints)
    assert resumed.shares == whole.shares
    assert equal(copied(resumed.model.network), copied(whole.model.network))


def test_the_mix_of_adapters_is_that_of_the_merged_weights(base: Path) -> None:
    pytest.importorskip("peft")
    model = CrossEncoder.load(str(base), seed=1, lora=LoraConfig(rank=4, alpha=8))
    begin = copied(model.network)
    first = copied(merged(model.network))
    with torch.no_grad():
        for parameter in model.network.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(parameter))))
    end = copied(model.network)
    last = copied(merged(model.network))
    mix(model.network, begin, end, 0.25)
    for name, value in copied(merged(model.network)).items():
        torch.testing.assert_close(value, 0.75 * first[name] + 0.25 * last[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shares", [(1.0,), (-0.1,), (0.5, 0.5), (0.5, 0.25)])
def test_shares_that_are_no_mixes_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError, match="interpolate"):
        TrainConfig(interpolate=shares)
    with pytest.raises(ValidationError, match="finite number"):
        TrainConfig(interpolate=(*shares, float("nan")))
