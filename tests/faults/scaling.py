"""An annotation run on a cluster on this machine that starts and ends nodes by itself, and what was seen of it.

The head is Ray's own, with its autoscaler (v2) over the provider that Ray tests itself with: a node is a raylet more.
All of it lives in a process group of its own, and goes with it.

    python -m tests.faults.scaling PICTURE.svg

draws nodes and backlog over time; test_autoscaling.py says what must hold.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import ray

from anmi_ray.config.load import load
from anmi_ray.core.records import COMPARISON, JUDGMENT
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.reports import charts
from anmi_ray.reports.page import asset
from anmi_ray.reports.theme import SECOND
from anmi_ray.store import Artifact, Store
from tests.heads import Head, environment, head
from tests.judging.serving import Chat, serving
from tests.small import start_from, write_collection, write_config, write_prepared

PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
HEAD_ID = "f" * 51 + "00000"  # the name by which that provider knows the head
HEAD_TYPE = "ray.head.default"
MOST, IDLE_S, BUCKETS = 3, 8.0, 4  # nodes for judges; seconds that one may idle
ANNOTATE = {"ray-subcluster": "annotate"}
# what an autoscaler's file must have, and this provider does not read
COMMANDS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")


@contextmanager
def scaling(groups: Mapping[str, Mapping[str, Any]], idle_s: float = 10.0, head_cpus: int = 2) -> Iterator[Head]:
    """A head whose autoscaler starts nodes of `groups` (by name, their resources, min_workers, max_workers, labels)."""
    kinds = {name: {"node_config": {}, "min_workers": 0, **group} for name, group in groups.items()}
    config: dict[str, Any] = {
        "cluster_name": "anmi",
        "max_workers": sum(kind["max_workers"] for kind in kinds.values()),
        "provider": {"type": "external", "module": PROVIDER, "launch_multiple": True, "head_node_id": HEAD_ID},
        "available_node_types": {
            HEAD_TYPE: {"resources": {"CPU": head_cpus}, "node_config": {}, "max_workers": 0},
            **kinds,
        },
        "head_node_type": HEAD_TYPE,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": idle_s / 60,
        "auth": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        **{f"{name}_commands": [] for name in COMMANDS},
    }
    variables = {
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
    }
    with head(head_cpus, config, variables) as made:
        yield made


@dataclass(frozen=True)
class Seen:
    """At so many seconds: the nodes that were there, by group, and how many questions waited."""

    seconds: float
    nodes: Mapping[str, int]
    backlog: int


@dataclass
class Watch:
    """Sees nodes and backlog twice a second. This process must be connected to the cluster."""

    backlog: Callable[[], int]
    label: str = "ray-subcluster"
    seen: list[Seen] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self.over.wait(0.5):
            groups = Counter(node["Labels"].get(self.label, "head") for node in ray.nodes() if node["Alive"])
            self.seen.append(Seen(time.monotonic() - self._began, dict(groups), self.backlog()))

    def until(self, found: Callable[[Seen], bool], timeout_s: float) -> Seen:
        """The first sight from now on of which something is true."""
        first, deadline = len(self.seen), time.monotonic() + timeout_s
        while True:
            for one in self.seen[first:]:
                if found(one):
                    return one
            assert time.monotonic() < deadline, self.seen[-3:]
            time.sleep(0.1)


def raylets(made: Head) -> list[psutil.Process]:
    """The raylets of nodes that the autoscaler started, the newest last."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == made.group and process.name() == "raylet":
                found.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return sorted(found, key=lambda one: one.create_time())[1:]


@dataclass(frozen=True)
class Outcome:
    """What was seen, when the node was taken and when the run had ended, how many questions there were, and the
    judgments with and without an error."""

    seen: list[Seen]
    taken_s: float
    ended_s: float
    questions: int
    judgments: int
    errors: int
    status: int
    said: str


def annotate(folder: Path, collection: Path, prepared: Path) -> Outcome:
    """Ask a server that takes its time, from no node for judges; kill one when they are as many as may be.

    folder: where the run's root comes to be, from `prepared` over `collection` (tests/small.py).
    """
    root = start_from(prepared, folder / "root", "compare")
    kinds = {"judge": {"resources": {"CPU": 1}, "max_workers": MOST, "labels": ANNOTATE}}
    with serving() as port, scaling(kinds, IDLE_S) as made:
        chat = Chat(port, "scaling")
        chat.setup(latency_s=1.2)
        endpoint = chat.config(concurrency=36).model_dump()
        config = write_config(
            folder / "scaling.yaml",
            collection,
            judge={"judges": [{"kind": "api", "name": "llm", "endpoint": endpoint, "prompt": {"template": "letters"}}]},
            execution={
                "buckets": BUCKETS, "chunk": 128, "askers": [1, 2 * MOST], "judge_on": ANNOTATE,
                "address": made.address, "threads": 1, "window": 2,
            },
        )  # fmt: skip
        run = [sys.executable, "-m", "anmi_ray", "run", str(config), "--root", str(root), "--until", "judge"]
        settings = load(config, [f"execution.root={root}"])
        artifacts = {
            name: Artifact(Store(settings.execution.root), name, one.fingerprint)
            for name, one in resolve(settings).items()
        }
        pairs = [artifacts["compare"].read_part("comparisons", b, COMPARISON).num_rows for b in range(BUCKETS)]
        ray.init(address=made.address, log_to_driver=False)
        try:
            with Watch(lambda: 2 * sum(pairs) - chat.answered()) as watch:
                status, said, taken, ended = _asked(run, watch, made)
        finally:
            ray.shutdown()
    judged = [artifacts["judge"].read_part("judgments", bucket, JUDGMENT) for bucket in range(BUCKETS)]
    errors = sum(len(table["error"].drop_null()) for table in judged)
    rows = sum(table.num_rows for table in judged)
    return Outcome(watch.seen, taken, ended, 2 * sum(pairs), rows, errors, status, said)


def _asked(run: list[str], watch: Watch, made: Head) -> tuple[int, str, float, float]:
    """Exit status and words of the run, and the seconds when a node was taken and when it ended."""
    watch.until(lambda seen: seen.nodes == {"head": 1}, 120)
    with subprocess.Popen(
        run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as process:
        watch.until(lambda seen: seen.nodes.get("annotate") == MOST, 300)
        raylets(made)[-1].kill()
        taken = watch.seen[-1].seconds
        watch.until(lambda seen: seen.nodes.get("annotate", 0) < MOST, 60)
        watch.until(lambda seen: seen.nodes.get("annotate") == MOST, 300)
        said, _ = process.communicate(timeout=600)
        ended = watch.seen[-1].seconds
    watch.until(lambda seen: "annotate" not in seen.nodes, 120)
    return process.returncode, said, taken, ended


def picture(outcome: Outcome) -> str:
    """SVG: waiting questions above, nodes for judges below, over the same seconds."""
    counts = [(one.seconds, float(one.nodes.get("annotate", 0))) for one in outcome.seen]
    steps = [point for (a, b), (c, d) in itertools.pairwise(counts) for point in ((a, b), (c, b), (c, d))]
    waiting = charts.Curve("waiting", [(one.seconds, float(one.backlog)) for one in outcome.seen])
    x_label = f"seconds; a node is killed at {outcome.taken_s:.0f}, the run ends at {outcome.ended_s:.0f}"
    questions = charts.lines([waiting], "seconds", "questions that wait", zero=True)
    nodes = charts.lines([charts.Curve("nodes", steps, SECOND)], x_label, "nodes for judges", zero=True)
    colours = dict(re.findall(r"--([\w-]+): (#\w+)", asset("page.css").split("}", 1)[0]))
    placed = (
        str(chart).replace("<svg ", f'<svg x="20" y="{20 + 300 * k}" width="480" height="290" ', 1)
        for k, chart in enumerate((questions, nodes))
    )
    shapes = re.sub(r"var\(--([\w-]+)\)", lambda match: colours[match[1]], "".join(placed))
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 520 620" font-family="Arial, sans-serif">'
    return f'{head}<rect width="520" height="620" fill="{colours["card"]}"/>{shapes}</svg>\n'


def main(path: str) -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory(prefix="anmi-", ignore_cleanup_errors=True) as temp:
        folder = Path(temp)
        collection = write_collection(folder / "collection")
        write_prepared(folder / "prepared", collection)
        outcome = annotate(folder, collection, folder / "prepared")
    Path(path).write_text(picture(outcome), encoding="utf-8")
    print(f"{outcome.questions:,} questions, run over after {outcome.ended_s:.0f} s, exit status {outcome.status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
