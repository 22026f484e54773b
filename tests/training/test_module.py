"""What is trained of every kind of student: what stays frozen, rates by depth, dropout, ways to compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from anmi_ray.config.learning import LoraConfig
from anmi_ray.config.train import Pooling, TrainConfig, TrainExecution
from anmi_ray.core.errors import ConfigError
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.heads import is_adapter, transformer_layers
from anmi_ray.training.batching import MicroBatch, step_batches
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.engine import TorchEngine
from anmi_ray.training.loop import train
from anmi_ray.training.module import Trainable, parameter_groups
from anmi_ray.training.objective import Objective
from tests.models.tiny import DECODERS, ENCODERS, write_tiny_decoder, write_tiny_encoder
from tests.training.lists import planted

# DeBERTa's module compiles two functions as it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

ALL = Phase(0.7)
DECODED: tuple[Pooling, ...] = ("last", "yes-no")
STUDENTS: Sequence[tuple[str, Pooling]] = [
    *((family, "cls") for family in ENCODERS),
    *((family, pooling) for family in DECODERS for pooling in DECODED),
]
SHORT = "{query} {document} so:"


def settings(pooling: Pooling, **more: Any) -> TrainConfig:
    prompt = {"prompt": SHORT} if pooling in ("last", "yes-no") else {}
    plain = {"lists_per_step": 4, "max_tokens": 64, "precision": "float32", "max_steps": 4, "engine": "ddp"}
    return TrainConfig.model_validate(plain | {"pooling": pooling} | prompt | more)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    made = {family: write_tiny_encoder(root / family, family) for family in ENCODERS}
    return made | {family: write_tiny_decoder(root / family, family, padding=False) for family in DECODERS}


def load(folder: Path, config: TrainConfig) -> CrossEncoder:
    return CrossEncoder.load(
        str(folder), pooling=config.pooling, max_tokens=config.max_tokens, prompt=config.prompt, lora=config.lora
    )


def step(
    folder: Path, config: TrainConfig, execution: TrainExecution | None = None
) -> tuple[Trainable, list[MicroBatch]]:
    model = load(folder, config)
    data = planted(lists=8).lists(model.pairs)
    module = Trainable(model, config, execution).train()
    return module, step_batches(data, config, 0, ALL, TrainExecution(micro_batch_tokens=1024))


def gradients(folder: Path, config: TrainConfig, execution: TrainExecution | None = None) -> dict[str, torch.Tensor]:
    module, batches = step(folder, config, execution)
    objective = Objective(module, config, 1, None)
    torch.manual_seed(1)
    for batch in batches:
        objective.loss(batch, ALL, *module(batch.batches)).backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("family", "pooling"), [*STUDENTS, ("bert", "mean")])
def test_gradients_on_the_last_layer_are_those_of_backward_passes(
    folders: dict[str, Path], family: str, pooling: Pooling
) -> None:
    config = settings(pooling, freeze_embeddings=False)
    module, batches = step(folders[family], config)
    objective = Objective(module, config, 1, None)
    found, figures = {}, {}
    for alpha in (1.0, 0.0):
        module.zero_grad()
        for batch in batches:
            objective.loss(batch, Phase(alpha), *module(batch.batches)).backward()
        if pooling == "yes-no":
            weight = cast(Any, module.network.encoder.get_output_embeddings()).weight
            no, yes = module.network.no_yes  # type: ignore[union-attr, misc]
            torch.testing.assert_close(weight.grad[yes], -weight.grad[no], atol=1e-6, rtol=1e-4)
            found[alpha] = weight.grad[yes].clone()
        else:
            layer: Any = module.network.score_layer()
            found[alpha] = layer.weight.grad.clone().flatten()
        figures = objective.finish(objective.sums(), ALL, 0)
    assert figures["gradient_ranking"] == pytest.approx(0.7 * float(found[1.0].norm()), rel=1e-3)
    assert figures["gradient_regression"] == pytest.approx(0.3 * float(found[0.0].norm()), rel=1e-3)
    cosine = torch.cosine_similarity(found[1.0], found[0.0], dim=0)
    assert figures["gradient_cosine"] == pytest.approx(float(cosine), rel=1e-2, abs=1e-3)
    share = figures["gradient_ranking"] / (figures["gradient_ranking"] + figures["gradient_regression"])  # type: ignore[operator]
    assert figures["gradient_share"] == pytest.approx(share)


@pytest.mark.parametrize(("family", "pooling"), STUDENTS)
def test_what_is_frozen_stays_and_upper_layers_learn_faster(
    folders: dict[str, Path], family: str, pooling: Pooling
) -> None:
    config = settings(pooling, freeze_layers=1, layer_decay=0.5, learning_rate=1e-3, head_learning_rate=1e-2)
    module, _ = step(folders[family], config)
    encoder = module.network.encoder
    first, second = transformer_layers(encoder)
    assert not any(parameter.requires_grad for parameter in first.parameters())
    assert not encoder.get_input_embeddings().weight.requires_grad
    rate = {id(p): group["lr"] for group in parameter_groups(module, config) for p in group["params"]}
    assert {rate[id(parameter)] for parameter in second.parameters()} == {1e-3}
    assert {rate[id(p)] for layer in module.network.head() for p in layer.parameters()} <= {1e-2}
    for name, child in encoder.base_model.named_children():
        if name in ("norm", "final_norm"):
            assert {rate[id(parameter)] for parameter in child.parameters()} == {1e-3}
    whole = settings(pooling, freeze_embeddings=False, layer_decay=0.5, learning_rate=1e-3)
    module, _ = step(folders[family], whole)
    rate = {id(p): group["lr"] for group in parameter_groups(module, whole) for p in group["params"]}
    assert rate[id(module.network.encoder.get_input_embeddings().weight)] == pytest.approx(2.5e-4)


@pytest.mark.parametrize(("family", "pooling"), STUDENTS)
def test_dropout_is_as_set(folders: dict[str, Path], family: str, pooling: Pooling) -> None:
    spread = {}
    for dropout in (0.0, 0.3):
        module, batches = step(folders[family], settings(pooling, dropout=dropout))
        with torch.no_grad():
            spread[dropout] = float((module(batches[0].batches)[0] - module(batches[0].batches)[0]).abs().max())
    assert spread[0.0] == 0.0
    assert spread[0.3] > 1e-4


@pytest.mark.parametrize(("family", "pooling"), STUDENTS)
def test_bfloat16_has_half_residuals_and_whole_scores(folders: dict[str, Path], family: str, pooling: Pooling) -> None:
    module, batches = step(folders[family], settings(pooling, precision="bfloat16"))
    exact, _ = step(folders[family], settings(pooling))
    seen: list[torch.dtype] = []
    transformer_layers(module.network.encoder)[1].register_forward_pre_hook(
        lambda _module, args, kwargs: seen.append((*args, *kwargs.values())[0].dtype), with_kwargs=True
    )
    score = module(batches[0].batches)[0]
    score.sum().backward()
    score = score.detach()
    assert set(seen) == {torch.bfloat16}
    assert score.dtype == torch.float32
    assert torch.unique(score).numel() > 0.8 * len(score)
    reference = exact(batches[0].batches)[0].detach()
    assert float((score - reference).abs().max()) < 0.1 * float(reference.std()) + 0.02


SAME: list[tuple[str, Pooling]] = [("bert", "cls"), ("modernbert", "cls"), ("qwen3", "yes-no"), ("gemma", "last")]


@pytest.mark.parametrize(("family", "pooling"), [*SAME, ("deberta-v2", "cls"), ("electra", "mean")])
def test_computing_layers_twice_changes_no_gradient(folders: dict[str, Path], family: str, pooling: Pooling) -> None:
    config = settings(pooling, dropout=0.2)
    plain = gradients(folders[family], config)
    again = gradients(folders[family], config, TrainExecution(gradient_checkpointing=True))
    assert plain.keys() == again.keys()
    for name, value in plain.items():
        torch.testing.assert_close(again[name], value, atol=1e-6, rtol=1e-4)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize(("family", "pooling"), SAME[:1])  # a minute and more each
def test_compiled_it_is_the_same(folders: dict[str, Path], family: str, pooling: Pooling) -> None:
    torch.compiler.reset()
    plain = gradients(folders[family], settings(pooling))
    found = gradients(folders[family], settings(pooling), TrainExecution(compile=True))
    assert plain.keys() == found.keys()
    for name, value in plain.items():
        torch.testing.assert_close(found[name], value, atol=5e-5, rtol=5e-3)


def test_only_adapters_and_the_head_learn(folders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("peft")
    for family, pooling in (SAME[0], SAME[2]):
        config = settings(pooling, lora=LoraConfig(rank=4), dev_points=())
        model = load(folders[family], config)
        before = {name: value.clone() for name, value in model.network.state_dict().items()}
        data = planted(lists=8).lists(model.pairs)
        trained = train(model, data, None, config, TrainExecution(gradient_checkpointing=True)).model
        head = {id(parameter) for layer in trained.network.head() for parameter in layer.parameters()}
        learns = {name for name, p in trained.network.named_parameters() if is_adapter(name) or id(p) in head}
        for name, value in trained.network.state_dict().items():
            assert torch.equal(value, before[name]) == (name not in learns), name
        pairs = ["word1 word2"] * 3, ["word3", "word4 word5", "word6 word7 word8"]
        scores = trained.score(*pairs)
        again = CrossEncoder.load(str(trained.export(tmp_path / family)), max_tokens=config.max_tokens)
        assert again.score(*pairs) == pytest.approx(scores, abs=1e-5)


def test_adapters_are_asked_for_on_both_sides(folders: dict[str, Path]) -> None:
    pytest.importorskip("peft")
    config = settings("cls", lora=LoraConfig())
    with pytest.raises(ConfigError, match="disagree on adapters"):
        Trainable(load(folders["bert"], settings("cls")), config)


def test_an_engine_goes_on_with_adapters(folders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("peft")
    config = settings("last", lora=LoraConfig(rank=2))
    (module, batches), (other, _) = step(folders["llama"], config), step(folders["llama"], config)
    engine, again = TorchEngine(module, config), TorchEngine(other, config)
    objective = Objective(module, config, 1, None)
    for i, batch in enumerate(batches):
        engine.accumulate(batch.batches, partial(objective.loss, batch, ALL), last=i + 1 == len(batches))
    assert engine.step(1.0) > 0
    engine.save(tmp_path)
    again.load(tmp_path)
    for name, value in engine.weights().items():
        assert torch.equal(value, again.weights()[name]), name
