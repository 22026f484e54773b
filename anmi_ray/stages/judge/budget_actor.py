"""The one actor of a run that a judge's money and rates go through, on the driver's node.

Asking actors call it before every few hundred questions and tell it what they got, so it is never called once a
judgment. It writes the spend log before it lets anything through, and says how far the run is: to the driver, and to
Prometheus through Ray.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.metrics import Counter, Gauge
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from anmi_ray.config.judge import JudgeConfig
from anmi_ray.judging import kinds
from anmi_ray.judging.budget_session import BudgetSession
from anmi_ray.judging.http.limits import Lease, Rates
from anmi_ray.judging.kinds import TextJudge
from anmi_ray.store.spend_log import Spend, SpendLog

REMEDY = "see what it is asked with anmi judge CONFIG --dry-run; prompt.template and prompt.readout must suit the model"


class BudgetActor(BudgetSession):
    """See the module. `clients`: actors that ask; after a restart the record so far is of a session that died."""

    def __init__(self, log: SpendLog, config: JudgeConfig, judge: TextJudge, clients: int, missing: int) -> None:
        super().__init__(log, config.budget, judge, kinds.reading(config), REMEDY)
        self._rates = Rates(*judge.rates, clients)
        self._meters = _Meters(judge.name, missing)

    def settle(self, key: str, questions: int, failures: Mapping[str, int], spend: Spend) -> None:
        """See BudgetSession."""
        self._meters.add(questions, sum(failures.values()), spend)
        super().settle(key, questions, failures, spend)

    def lease(self, requests: int, tokens: int, unused: int) -> Lease:
        """See Rates."""
        return self._rates.lease(requests, tokens, unused)


class _Meters:
    """What Prometheus sees."""

    def __init__(self, judge: str, missing: int) -> None:
        tags = {"tag_keys": ("judge",)}
        self._answers = Counter("anmi_judge_answers", "questions answered by a judge", **tags)
        self._failures = Counter("anmi_judge_failures", "questions that a judge failed to answer", **tags)
        self._requests = Counter("anmi_judge_requests", "requests sent to a judge, retries included", **tags)
        self._prompt = Counter("anmi_judge_prompt_tokens", "prompt tokens that a judge read", **tags)
        self._cached = Counter("anmi_judge_cached_tokens", "prompt tokens that came from a judge's cache", **tags)
        self._answer = Counter("anmi_judge_answer_tokens", "tokens that a judge wrote", **tags)
        self._dollars = Counter("anmi_judge_dollars", "dollars spent on a judge, by its prices", **tags)
        self._queue = Gauge("anmi_judge_queue", "questions that are not answered yet", **tags)
        self._tags = {"judge": judge}
        self._missing = missing
        self._queue.set(missing, tags=self._tags)

    def add(self, questions: int, failed: int, spend: Spend) -> None:
        """Count what was settled."""
        amounts: list[tuple[Counter, float]] = [
            (self._answers, questions - failed),
            (self._failures, failed),
            (self._requests, spend.requests),
            (self._prompt, spend.prompt_tokens),
            (self._cached, spend.cached_tokens),
            (self._answer, spend.answer_tokens),
            (self._dollars, spend.cost),
        ]
        for counter, amount in amounts:
            if amount > 0:
                counter.inc(amount, tags=self._tags)
        self._missing = max(0, self._missing - questions)
        self._queue.set(self._missing, tags=self._tags)


def start(log: SpendLog, config: JudgeConfig, judge: TextJudge, clients: int, missing: int) -> Any:
    """A BudgetActor, named, on this node; it needs no CPU, and comes back when its process dies."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    actor = ray.remote(BudgetActor).options(
        name=f"anmi-budget-{log.campaign}-{judge.name}-{uuid.uuid4().hex[:8]}",
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=here,
    )
    return actor.remote(log, config, judge, clients, missing)
