"""Renders cluster/kuberay, vm and grafana from cluster/sizes.yaml: `make manifests`, or python -m cluster.render.

--check     write nothing; exit code 1 and the names of the files that differ
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from anmi_ray.core.errors import ConfigError
from cluster import dashboard, machines, pods, queues
from cluster.description import ROOT, Description, load

FOLDERS = ("grafana", "kuberay", "vm")  # nothing but rendered files in them
_HEADER = (
    "# Rendered by `make manifests` from cluster/sizes.yaml: change that, not this. "
    "The reasons: docs/explanation/clusters.md\n"
)


def render(description: Description) -> dict[str, str]:
    """Text of each file, by its path below cluster/."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": description.namespace}}
    files = {"kuberay/namespace.yaml": [namespace], "kuberay/metrics.yaml": [pods.pod_monitor(description)]}
    for name, cluster in description.clusters.items():
        files[f"kuberay/{name}-job.yaml"] = [pods.ray_job(description, name)]
        if cluster.queue:
            files[f"kuberay/{name}-queue.yaml"] = queues.queue(description, name)
        else:  # one that waits in a queue would hold its quota for as long as it stays
            files[f"kuberay/{name}-cluster.yaml"] = [pods.ray_cluster(description, name)]
    files["kuberay/serve.yaml"] = [pods.ray_service(description)]
    files["vm/aws.yaml"] = [machines.aws(description)]
    texts = {path: _HEADER + _text(documents) for path, documents in files.items()}
    return texts | {"grafana/anmi.json": dashboard.dashboard()}


def differences(files: Mapping[str, str], folder: Path) -> list[str]:
    """Files below `folder` that are missing, differ, or are rendered no longer."""
    there = {str(path.relative_to(folder)) for name in FOLDERS for path in (folder / name).rglob("*") if path.is_file()}
    wrong = [path for path in there if path not in files]
    for path, text in files.items():
        if path not in there or (folder / path).read_text(encoding="utf-8") != text:
            wrong.append(path)
    return sorted(wrong)


def write(files: Mapping[str, str], folder: Path) -> list[str]:
    """Make what is below `folder` the rendered files; the paths that were touched."""
    changed = differences(files, folder)
    for path in changed:
        target = folder / path
        if path in files:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(files[path], encoding="utf-8")
        else:
            target.unlink()
    return changed


def main(arguments: list[str] | None = None) -> int:
    """Render, or check; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cluster.render", description="Render the manifests of cluster/.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file differs")
    options = parser.parse_args(arguments)
    folder = ROOT / "cluster"
    try:
        files = render(load())
    except ConfigError as error:
        print(f"cluster: configuration: {error}", file=sys.stderr)
        return 2
    changed = differences(files, folder) if options.check else write(files, folder)
    for path in changed:
        print(f"{'differs' if options.check else 'wrote'}: cluster/{path}")
    if options.check and changed:
        print("run `make manifests` and commit what it writes", file=sys.stderr)
        return 1
    return 0


class _Dumper(yaml.SafeDumper):
    """Lists are indented, a value that stands in several places is written in each, and lines stay lines."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, "|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def _text(documents: list[dict[str, Any]]) -> str:
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, explicit_start=len(documents) > 1)


if __name__ == "__main__":
    sys.exit(main())
