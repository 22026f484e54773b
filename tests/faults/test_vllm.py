"""A vLLM judge whose engine is killed while it asks: Ray starts another, and nothing is lost or asked in vain."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from pathlib import Path
from pydoc_data.topics import topics

import psutil
import pytest

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.vllm import VllmJudgeConfig
from anmi_ray.core.errors import JudgeError
from anmi_ray.judging import kinds
from anmi_ray.judging.questions import AT_ONCE
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages.judge import vllm
from anmi_ray.stages.judge.asking import QuestionSources
from anmi_ray.stages.judge.dispatch import log_of
from anmi_ray.store import Store
from tests.engines import needs_vllm
from tests.models.tiny import write_tiny_llm
from tests.stages.texts import ask, write_questions

pytestmark = [
    needs_vllm,
    pytest.mark.faults,
    pytest.mark.long,
    pytest.mark.ray,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning"),  # Ray's own, where it is imported
]
BUCKETS, DOCUMENTS = 2, 32  # some 2,000 questions: an engine answers for longer than it takes to see that it does
PAIRS = [(i, j) for i in range(DOCUMENTS) for j in range(i)]
TOPICS = [text for text in topics.values() if len(text) > 300]


def running(name: str) -> list[psutil.Process]:
    """Processes below this one whose command line holds `name`."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if name in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


class Killer:
    """Told of progress, it kills a process of each name: the first at the first answers, the next ones as soon as there
    is another engine. Whatever it kills, it does once."""

    def __init__(self, chance: random.Random, *names: str) -> None:
        self.chance, self.killed, self._names = chance, list[str](), names
        self.engines: dict[int, psutil.Process] = {}
        self._thread = threading.Thread(target=self._kill_all, daemon=True)

    def __call__(self, done: int, total: int, unit: str = "buckets", note: str = "") -> None:
        if unit == "questions" and done and not self._thread.ident:
            self._thread.start()

    def _kill_all(self) -> None:
        for name in self._names:
            while not (fresh := {one.pid: one for one in running("EngineCore") if one.pid not in self.engines}):
                time.sleep(0.1)
            self.engines |= fresh
            time.sleep(self.chance.uniform(0.0, 0.3))
            for process in running(name):
                with suppress(psutil.Error):
                    process.kill()
                    self.killed.append(name)


def campaign(folder: Path, killer: Killer) -> tuple[QuestionSources, VllmJudgeConfig, Context]:
    """Questions of all pairs of BUCKETS queries' documents, for a judge in one engine."""
    store = Store(str(folder / "root"))
    texts = [text[:300] for text in TOPICS]
    buckets = [[(f"what is {b}?", texts[b * DOCUMENTS : (b + 1) * DOCUMENTS], PAIRS)] for b in range(BUCKETS)]
    sources = write_questions(store, "test", buckets)
    space = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    judge = VllmJudgeConfig.model_validate(
        {
            "kind": "vllm",
            "name": "llm",
            "model": str(write_tiny_llm(folder / "tiny")),
            "engine_kwargs": {"enforce_eager": True, "max_num_seqs": 16},
            "execution": {"device": "cpu", "environment": space},
        }
    )
    context = Context(store, ExecutionConfig(root=store.root, buckets=BUCKETS), BUCKETS, 0, killer)
    return sources, judge, context


def test_an_engine_killed_is_replaced(ray_local: None, tmp_path: Path) -> None:
    killer = Killer(random.Random(5), "EngineCore", "vLLMEngineStageUDF")
    sources, judge, context = campaign(tmp_path, killer)
    total = BUCKETS * 2 * len(PAIRS)
    found = ask(sources, judge, context)
    assert set(killer.killed) == {"EngineCore", "vLLMEngineStageUDF"}
    doubled = 0
    for bucket in range(BUCKETS):
        questions, held = sources.questions(bucket), log_of(context.store, kinds.of(judge)).read(bucket)
        assert held.table.num_rows == len(questions.query)
        assert held.final(questions.ids).all()
        assert held.table["error"].null_count == held.table.num_rows
        doubled += held.superseded
    assert found["answered"] >= total
    assert found["asked"] - total <= doubled <= 2 * len(killer.killed) * AT_ONCE
    print(f"{total} questions, killed {killer.killed}, {doubled} bought twice, {found}")
    _, left = psutil.wait_procs([*killer.engines.values(), *running("EngineCore")], timeout=30)
    assert not left, "an engine outlived its actor"  # it would hold a GPU's memory
    assert ask(sources, judge, context)["asked"] == 0


def test_an_engine_that_keeps_dying_ends_the_run_and_what_was_bought_stays(
    ray_local: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "_RESTARTS", 0)
    killer = Killer(random.Random(6), "EngineCore")
    sources, judge, context = campaign(tmp_path, killer)
    with pytest.raises(JudgeError, match="kept dying"):
        ask(sources, judge, context)
    assert set(killer.killed) == {"EngineCore"}
    held = [log_of(context.store, kinds.of(judge)).read(bucket).table.num_rows for bucket in range(BUCKETS)]
    assert 0 < sum(held) < BUCKETS * 2 * len(PAIRS)
