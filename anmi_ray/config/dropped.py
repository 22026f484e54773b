"""Settings that there were once: what they are fixed at now, and what does instead; and values by their old names.

Whoever still gives one is told so. The reference lists the settings. Records of old runs, which name all settings, are
read without those that have their fixed value, and with the new names of values.
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import to_jsonable_python


class Dropped(NamedTuple):
    """A setting that is fixed: its value, and a sentence on what does instead, where something does."""

    value: Any
    instead: str = ""


_ENGINE = "engine_kwargs of the judge takes it"
_JUDGE = "judge.judges.N."
_SERVERS = (f"{_JUDGE}endpoint.", "rerank.peers.N.endpoint.")
_INDEX = "retrieve.dense.index."

# By dotted name, as the reference writes it: N for a place in a list. What is dropped of `train` was one of `distill`
# too, and of `judge` one of `distill.judge`.
DROPPED: dict[str, Dropped] = {
    "retrieve.lucene.rm3": Dropped(
        None, "retrieve.retrievers: [lucene, dense] finds documents without the query's words"
    ),
    "retrieve.fusion.normalisation": Dropped("minmax"),
    f"{_INDEX}lists": Dropped(None, "lists of a shard are four times the root of its documents"),
    f"{_INDEX}sample": Dropped(65_536),
    f"{_INDEX}links": Dropped(32, "raise search_effort for more recall"),
    f"{_INDEX}build_effort": Dropped(200, "raise search_effort for more recall"),
    f"{_INDEX}rescored": Dropped(4.0, "raise probes or search_effort for more recall"),
    "compare.max_reject_fraction": Dropped(0.01, "mend the file's malformed rows"),
    f"{_JUDGE}max_reject_fraction": Dropped(0.01, "mend the file's malformed rows"),
    f"{_JUDGE}revision": Dropped(None, "write model: org/model@revision"),
    f"{_JUDGE}slope": Dropped(10.0, "only an encoder judge has a slope"),
    f"{_JUDGE}readout": Dropped("soft", "only a simulated judge has a readout"),
    f"{_JUDGE}max_model_len": Dropped(None, "the prompt's limits decide it: query_tokens, document_tokens"),
    f"{_JUDGE}execution.cpu_cache_gb": Dropped(4, "environment: {VLLM_CPU_KVCACHE_SPACE: GB}"),
    f"{_JUDGE}execution.block_size": Dropped(None, _ENGINE),
    f"{_JUDGE}execution.num_gpu_blocks_override": Dropped(None, _ENGINE),
    f"{_JUDGE}execution.restarts": Dropped(20),
    **{f"{place}connect_timeout_s": Dropped(10.0) for place in _SERVERS},
    **{f"{place}deadline_s": Dropped(300.0, "five times timeout_s") for place in _SERVERS},
    **{f"{place}backoff_s": Dropped(1.0, "max_wait_s bounds all waits") for place in _SERVERS},
    "judge.pilot.max_dollars_per_1000": Dropped(
        None, "judge.pilot.max_dollars and judge.budget.dollars limit the cost"
    ),
    "distill.dev_share": Dropped(0.15),
    "distill.test_share": Dropped(0.2),
    "rate.sample_queries": Dropped(5000),
    "rate.strength": Dropped("unit", "judge_weights sets how much a judge's answers count"),
    "rate.lapse": Dropped(0.0, "dispersion: pooled widens the errors of answers that are less reliable"),
    "rate.max_iterations": Dropped(100),
    "rate.tolerance": Dropped(1e-8),
    "mine.random_weight": Dropped(1.0, "mine.random_negatives says how many there are"),
    "mine.rating_sd_floor": Dropped(10.0),
    "mine.anchor_p": Dropped(0.01),
    "mine.top_rated_anchors": Dropped(
        False, "anchors: confirmed asks judges which of a query's likeliest documents answer it"
    ),
    "mine.allow.N.positive_above": Dropped(0.9),
    "mine.allow.N.origin": Dropped(1500.0),
    "mine.weigh.origin": Dropped(1500.0),
    "mine.weigh.steps": Dropped(10),
    "mine.weigh.most": Dropped(4),
    "mine.sample.scale": Dropped(100.0, "scale a and b: a (gap/100 - b)^2"),
    "mine.sample.domain": Dropped(1.0, "divide reference_sd by it"),
    "train.whole_head": Dropped(True),
    "train.equal_segments": Dropped(True),
    "train.beta1": Dropped(0.9),
    "train.beta2": Dropped(0.98),
    "train.average_start": Dropped(0.5),
    "train.lora.dropout": Dropped(0.0),
    "train.list_size": Dropped(None, "mine.negatives says how many documents a list has"),
    "train.map_learning_rate": Dropped(2e-2),
    "train.map_start": Dropped((0.3, 1.0)),
    "train.loss.list_temperature_elo": Dropped(100.0),
    "train.loss.regression_scale": Dropped(1.0, "train.balance.alpha weighs the two terms"),
    "train.loss.in_batch_weight": Dropped(1.0),
    "train.balance.prior_strength": Dropped(1.0),
    "train.balance.asymmetry": Dropped(1.5),
    "train.balance.learning_rate": Dropped(0.02),
    "train.curriculum.low": Dropped((250.0, 150.0)),
    "train.curriculum.high": Dropped((500.0, 350.0)),
    "train.curriculum.moves": Dropped(4),
    "rerank.peers.N.max_failures": Dropped(0.1),
    "evaluate.level": Dropped(0.95),
    "evaluate.also": Dropped((), "a run with trained_by measures the model on another collection"),
    "evaluate.normalisation": Dropped("zscore"),
    "evaluate.weight_steps": Dropped(10),
    "execution.core_dollars_hour": Dropped(None, "anmi plan counts GPU hours: gpu_dollars_hour prices them"),
    "execution.task_retries": Dropped(3),
    "execution.no_progress_s": Dropped(7200),
    "execution.pool_start_s": Dropped(120.0),
    "execution.train.token_folder": Dropped(None, "tokens stand beside the checkpoints, else under TMPDIR"),
    "execution.train.checkpoints_kept": Dropped(2),
    "execution.train.log_every": Dropped(1),
}

# By dotted name, the values that a setting has under another name now.
RENAMED: dict[str, dict[str, str]] = {"train.loss.target": {"absolute": "centred"}}


def dropped(name: str) -> Dropped | None:
    """What became of the setting of a dotted name (N, or a number, for a place in a list), if there was one.

    >>> dropped("distill.beta1")
    Dropped(value=0.9, instead='')
    >>> dropped("judge.judges.0.endpoint.backoff_s").value
    1.0
    """
    name = re.sub(r"\.\d+(?=\.)", ".N", name)
    if name.startswith("distill.judge."):
        name = name.removeprefix("distill.")
    return DROPPED.get(name) or DROPPED.get(re.sub("^distill", "train", name))


def without(content: dict[str, Any], error: ValidationError) -> dict[str, Any]:
    """A record's settings as they are said now, in what `error` complains of.

    Without the dropped ones that have their fixed values, and with the new names of values.
    """
    content = deepcopy(content)
    for detail in error.errors(include_url=False):
        if detail["type"] not in ("extra_forbidden", "literal_error"):
            continue
        node: Any = content
        path: list[str] = []
        groups: list[Any] = list(detail["loc"])
        last = groups.pop()
        for part in groups:
            if isinstance(node, list) or part in node:  # else it says which form of a group it is
                node = node[part]
                path.append(str(part))
        name = ".".join([*path, str(last)])
        if name in RENAMED:
            node[last] = RENAMED[name].get(node[last], node[last])
            continue
        known = dropped(name)
        if known is not None and node[last] == to_jsonable_python(known.value):
            del node[last]
    return content
