"""An annotation run on a cluster that scales itself: judges' nodes come for it, one is taken away, all go after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import ray

from anmi_ray.config.experiment import load
from anmi_ray.experiment import resolve
from anmi_ray.records import COMPARISON, JUDGMENT
from anmi_ray.store import Artifact, Store
from tests.autoscaling import Watch, raylets, scaling, write
from tests.faults.test_kill import command
from tests.heads import environment
from tests.judging.serving import Chat, serving
from tests.small import write_collection, write_config

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
MOST, IDLE_S = 3, 8.0
ANNOTATE = {"ray-subcluster": "annotate"}
JUDGES = {"judge": {"resources": {"CPU": 1}, "max_workers": MOST, "labels": ANNOTATE}}


def test_nodes_follow_the_backlog(tmp_path: Path) -> None:
    collection = write_collection(tmp_path / "collection", train=28, dev=4, test=8)
    with serving() as port, scaling(JUDGES, IDLE_S) as head:
        chat = Chat(port, "scaling")
        chat.setup(latency_s=0.4)
        endpoint = chat.config(concurrency=36).model_dump()
        config = write_config(
            tmp_path / "scaling.yaml",
            collection,
            judge={"judges": [{"kind": "api", "name": "llm", "endpoint": endpoint, "prompt": {"template": "letters"}}]},
            retrieve={"depth": 40, "candidates": 30},
            compare={"degree": 8},
            execution={
                "buckets": 4, "askers": [1, 2 * MOST], "chunk": 256, "address": head.address, "judge_on": ANNOTATE,
                "threads": 1, "window": 2,
            },
        )  # fmt: skip
        run = command(config, tmp_path / "root")
        ready = subprocess.run(
            [*run, "--until", "compare"], capture_output=True, text=True, timeout=300, env=environment()
        )
        assert ready.returncode == 0, ready.stdout + ready.stderr
        artifacts = {
            name: Artifact(Store(str(tmp_path / "root")), name, one.fingerprint)
            for name, one in resolve(load(config, [f"execution.root={tmp_path / 'root'}"])).items()
        }
        pairs = sum(artifacts["compare"].read_part("comparisons", b, COMPARISON).num_rows for b in range(4))
        ray.init(address=head.address, log_to_driver=False)
        try:
            with Watch(lambda: 2 * pairs - chat.answered()) as watch:
                watch.until(lambda seen: seen.nodes == {"head": 1}, 120)
                with subprocess.Popen(
                    [*run, "--until", "judge"],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(),
                ) as process:  # fmt: skip
                    watch.until(lambda seen: seen.nodes.get("annotate") == MOST, 180)
                    victim = raylets(head)[-1]
                    victim.kill()
                    watch.until(lambda seen: seen.nodes.get("annotate", 0) < MOST, 60)
                    watch.until(lambda seen: seen.nodes.get("annotate") == MOST, 120)
                    said, _ = process.communicate(timeout=400)
                    ended = watch.seen[-1].seconds
                gone = watch.until(lambda seen: "annotate" not in seen.nodes, 120)
        finally:
            ray.shutdown()
            write(watch.seen, tmp_path / "seen.json")
    print(said, file=sys.stderr)
    assert process.returncode == 0, said
    assert max(seen.nodes.get("annotate", 0) for seen in watch.seen) == MOST
    judgments = [artifacts["judge"].read_part("judgments", bucket, JUDGMENT) for bucket in range(4)]
    assert sum(table.num_rows for table in judgments) == 2 * pairs
    assert not any(table["error"].drop_null().length() for table in judgments)
    print(f"{2 * pairs:,} questions in {ended:.0f} s; the last node went {gone.seconds - ended:.0f} s after the run")
