"""A kind of judges is its settings and a file of its name: what its object says, and that it loads no model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from anmi_ray.config.distill import DistillConfig
from anmi_ray.config.execution import ExecutionConfig, PlanConfig
from anmi_ray.config.judge import JudgeConfig, JudgeSettings
from anmi_ray.judging import kinds
from anmi_ray.judging.kinds.base import ModelInputs
from anmi_ray.judging.spend import Price

ENDPOINT = {"model": "m", "base_url": "http://127.0.0.1:8000/v1"}
PRICES = {"input_price": 1.0, "output_price": 10.0}
GIVEN: dict[str, dict[str, Any]] = {
    "simulated": {"name": "a"},
    "similarity": {},
    "null": {},
    "api": {"name": "llm", "endpoint": ENDPOINT},
    "encoder": {"model": "reranker", "max_tokens": 64, "gpus": 0.5},
    "vllm": {"name": "local", "model": "org/model", "execution": {"engines": [2, 4], "tensor_parallel": 2}},
    "imported": {"path": "preferences.csv"},
    "distilled": {},
}
LETTERS = {"template": "letters", "readout": "logprob"}


def judge(kind: str, **more: Any) -> kinds.Judge:
    """The judge of a kind, with these settings beside what it needs."""
    (settings,) = JudgeConfig.model_validate({"judges": [{"kind": kind, **GIVEN[kind], **more}]}).judges
    return kinds.of(settings)


def test_a_kind_is_its_settings_and_a_file_of_its_name() -> None:
    classes = get_args(get_args(JudgeSettings)[0])
    named = {get_args(one.model_fields["kind"].annotation)[0] for one in classes}
    files = {path.stem for path in Path(kinds.__file__).parent.glob("*.py")} - {"__init__", "base"}
    assert named == files == set(GIVEN)
    homes = {type(judge(kind)).__module__.rpartition(".")[2] for kind in named}
    assert homes == named


def test_judges_are_told_apart_without_loading_a_model() -> None:
    code = (
        "import sys\nfrom tests.judging.test_kinds import GIVEN, judge\n"
        "for kind in GIVEN: judge(kind).need('judge.judges.0', {})\n"
        "print([name for name in ('ray', 'torch', 'transformers', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("kind", "more", "identity"),
    [
        ("null", {"name": "x"}, "5c7fd0c94606780a"),
        ("api", {}, "98fa6fa782c28012"),
        ("api", {"identity": "here", "prompt": LETTERS, "endpoint": {**ENDPOINT, "logprobs": 20}}, "58e344cec3af467d"),
    ],
)
def test_answers_of_earlier_releases_are_found_by_the_same_identity(
    kind: str, more: dict[str, Any], identity: str
) -> None:
    """Recorded before kinds were objects."""
    found = judge(kind, **more)
    assert isinstance(found, kinds.TextJudge)
    assert found.identity == identity
    assert found.fingerprint_inputs()[f"answers of {found.name}"] == identity


def test_judgments_follow_from_the_rules_by_which_words_are_read() -> None:
    by_letters = judge("api", prompt=LETTERS, endpoint={**ENDPOINT, "logprobs": 20})
    assert by_letters.fingerprint_inputs().keys() == {"answers of llm"}
    assert judge("api").fingerprint_inputs().keys() == {"answers of llm", "reading of llm"}


def test_what_asking_takes_of_the_cluster() -> None:
    needs = {kind: judge(kind).need("judge.judges.0", {}) for kind in GIVEN}
    assert [kind for kind, need in needs.items() if need is None] == ["simulated", "similarity", "null", "imported"]
    assert {kind: (need.worker, need.count, dict(need.each)) for kind, need in needs.items() if need} == {
        "api": ("asking actor", 1, {"CPU": 0.5}),
        "encoder": ("asking actor", 1, {"CPU": 0.5, "GPU": 0.5}),
        "vllm": ("engine", 2, {"CPU": 1.0, "GPU": 2.0}),
        "distilled": ("asking actor", 1, {"CPU": 0.5}),
    }
    reading = {kind: one for kind in GIVEN if isinstance(one := judge(kind), kinds.TextJudge)}
    pools = {kind: one.actors(ExecutionConfig(askers=(1, 3))) for kind, one in reading.items()}
    assert pools == {"null": (1, 3), "api": (1, 3), "encoder": (1, 3), "vllm": (2, 4)}
    few = judge("api", endpoint={**ENDPOINT, "concurrency": 2})
    assert isinstance(few, kinds.TextJudge)
    assert few.actors(ExecutionConfig(address="auto", cpus=112)) == (1, 2)  # its server takes two requests at once


def test_what_asking_costs() -> None:
    free = judge("api")
    priced = judge("api", endpoint={**ENDPOINT, **PRICES, "requests_per_minute": 60})
    local = judge("vllm", execution={"accelerator_type": "H100"})
    assert isinstance(free, kinds.PromptJudge)
    assert isinstance(priced, kinds.PromptJudge)
    assert isinstance(local, kinds.PromptJudge)
    assert free.price(600, 1e6, 1e3, PlanConfig()) == Price()
    assert free.max_dollars == 0.0
    price = priced.price(600, 1e6, 1e3, PlanConfig())
    assert (price.dollars, price.hours, price.limit) == (
        pytest.approx(1.01),
        pytest.approx(1 / 6),
        "60 requests a minute",
    )
    assert price.at_most == pytest.approx(600 * priced.max_dollars)
    hours = local.price(600, 1e9, 0, PlanConfig(parameters={"org/model": 8.0})).gpu_hours
    assert hours == pytest.approx(11.2, abs=0.05)


def test_models_on_the_cluster_say_what_they_read() -> None:
    distill = DistillConfig(max_tokens=96)
    assert judge("encoder").model_inputs(distill) == ModelInputs("pointwise", 64)
    assert judge("encoder", max_tokens=None).model_inputs(None) == ModelInputs("pointwise", 512)
    assert judge("distilled").model_inputs(distill) == ModelInputs(distill.form, 96)
    assert judge("api").model_inputs(distill) is None


def test_a_distilled_judge_is_an_encoder_judge_once_its_model_is_there() -> None:
    made = {"kind": "encoder", "model": "/folder", "form": "pointwise", "slope": 2.0}
    settings = judge("distilled").resolved(made)
    assert (settings.kind, settings.name, settings.slope) == ("encoder", "distilled", 2.0)
    assert judge("similarity").resolved(made) == judge("similarity").config
