"""A driver on a cluster of tests/stages/test_preflight.py: asks it one thing after another, and prints what came of it.

ADDRESS CONFIG SHARED PRIVATE READ_ONLY: the cluster, an experiment's settings, and three folders.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import ray
import ray.data

from anmi_ray.config import load
from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.needs import Need, of_training
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.core.errors import AnmiError, DataError
from anmi_ray.pipeline import preflight
from anmi_ray.pipeline.stages import stages_of
from anmi_ray.runtime.capacity import check_room
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.tasks import Context, data_settings, rows_of
from anmi_ray.stages.judge.vllm import reserved
from anmi_ray.stages.train.trainer import Job, run_training
from anmi_ray.store import Store
from anmi_ray.training.loop import Trained

ANNOTATE, TRAIN = {"ray-subcluster": "annotate"}, {"ray-subcluster": "train"}
VLLM = "judge={judges: [{kind: vllm, name: llm, model: org/model, execution: {accelerator_type: H100}}]}"
SERVER = "{model: m, base_url: 'http://10.0.0.1/v1', key_env: NO_SUCH_KEY}"
API = f"judge={{judges: [{{kind: api, name: llm, endpoint: {SERVER}}}]}}"


def label_here() -> str:
    """The subcluster of the node that this runs on."""
    here = ray.get_runtime_context().get_node_id()
    return next(node["Labels"].get("ray-subcluster", "head") for node in ray.nodes() if node["NodeID"] == here)


def label_of_data(on: dict[str, str]) -> list[str]:
    """Where Ray Data's actors run."""
    context = Context(Store("unused"), ExecutionConfig(address="auto"), 1, 0, Reporter().progress)

    class Where:
        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            return {"label": [label_here()]}

    with data_settings(context, on):
        asked = ray.data.range(2, override_num_blocks=2).map_batches(
            Where, batch_size=1, compute=ray.data.ActorPoolStrategy(size=1), num_cpus=0.5
        )
        with rows_of(asked) as rows:
            return sorted({row["label"] for row in rows})


def tell_label(job: Job, *_: object) -> Trained:
    """Instead of training: say where it would have been, as an error that no retry changes."""
    raise DataError(f"trained on {label_here()}")


def label_of_group() -> str:
    """Where an actor in a reserved group runs."""
    where = ray.remote(label_here)
    return ray.get(where.options(num_cpus=0.1, **reserved([{"CPU": 0.25}] * 2, ANNOTATE)).remote())


def told(ask: Callable[[], Any]) -> Any:
    """What came of it: an error's parts, or what was returned."""
    try:
        return ask()
    except AnmiError as error:
        return {"kind": type(error).__name__, "message": error.message, "place": error.place, "remedy": error.remedy}


def main(address: str, config: str, shared: str, private: str, read_only: str) -> None:
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    said: list[str] = []

    def checked(*overrides: str) -> Any:
        settings = load.load(config, ["execution.address=auto", f"execution.root={shared}", *overrides])
        return preflight.check(settings, stages_of(settings), said.append)

    def gpus(**more: Any) -> Any:
        return check_room(of_training(TrainExecution(use_gpu=True, resources={"CPU": 0.1}, **more)), said.append)

    def trained() -> Any:
        execution = TrainExecution(resources={"CPU": 0.1}, label_selector=ANNOTATE, storage_path=f"{shared}/ray")
        return run_training(None, TrainConfig(), execution, "labels", f"{shared}/model", body=tell_label)

    found = {
        "fits": told(checked),
        "left behind": [name for name in Store(shared).tree("") if "preflight" in name],
        "not shared": told(lambda: preflight.check_storage(private, said.append)),
        "read only": told(lambda: preflight.check_storage(read_only, said.append)),
        "no such key": told(lambda: checked(API)),
        "no such gpu": told(lambda: checked(VLLM)),
        "gpus there": told(lambda: gpus(num_workers=2)),
        "too many gpus": told(lambda: gpus(num_workers=3)),
        "another type": told(lambda: gpus(accelerator_type="H100")),
        "gpus elsewhere": told(lambda: gpus(label_selector=TRAIN)),
        "no such label": told(lambda: gpus(label_selector={"ray-subcluster": "moon"})),
        "too large": told(lambda: check_room(Need("task", 1, {"CPU": 64.0}, "x", {}, size="y"), said.append)),
        "data": label_of_data(ANNOTATE),
        "group": label_of_group(),
        "training": told(trained),
        "notices": said,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
