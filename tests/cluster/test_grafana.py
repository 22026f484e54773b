"""The dashboard: every metric in it is defined in this package, or used or defined in the installed Ray and vLLM."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.manifests import ROOT, of

DASHBOARD: dict[str, Any] = json.loads((ROOT / "cluster" / "grafana" / "anmi.json").read_text(encoding="utf-8"))
GRAPHS = [panel for panel in DASHBOARD["panels"] if panel["type"] == "timeseries"]
QUERIES = [target["expr"] for panel in GRAPHS for target in panel["targets"]]
METRICS = sorted({name for query in QUERIES for name in re.findall(r"\b([a-z_]+)\{", query)})


@cache
def ours() -> dict[str, str]:
    """This package's metrics, by the name that Prometheus sees."""
    found: dict[str, str] = {}
    for path in (ROOT / "anmi_ray").rglob("*.py"):
        for kind, name in re.findall(r"(Counter|Gauge)\(\s*\"(anmi_\w+)\"", path.read_text(encoding="utf-8")):
            found[f"ray_{name}" + ("_total" if kind == "Counter" else "")] = kind
    return found


@cache
def rays() -> str:
    """Source of Ray's own dashboards, and of what defines the metrics of nodes and of the autoscaler."""
    folder = Path(str(metadata.distribution("ray").locate_file("ray")))
    files = [*(folder / "dashboard" / "modules" / "metrics" / "dashboards").glob("*_panels.py")]
    files += [folder / "dashboard" / "modules" / "reporter" / "reporter_agent.py"]
    assert len(files) > 5
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def test_there_are_metrics() -> None:
    assert len(METRICS) > 20
    assert len(ours()) >= 8


@pytest.mark.parametrize("name", METRICS)
def test_the_metric_exists(name: str) -> None:
    if name.startswith("ray_anmi_"):
        assert name in ours()
    else:
        bare = name.removeprefix("ray_")
        assert re.search(rf"\b{name}\{{", rays()) or f'"{bare}"' in rays()


@pytest.mark.parametrize("query", QUERIES)
def test_queries_are_balanced_and_filtered(query: str) -> None:
    for opening, closing in ("()", "{}", "[]"):
        assert query.count(opening) == query.count(closing)
    assert query.count('ray_io_cluster=~"$cluster"') == len(re.findall(r"\b[a-z_]+\{", query))
    for name, rest in re.findall(r"\b([a-z_]+)\{[^}]*\}(\[?)", query):
        counter = name.endswith("_total") and not name.startswith("ray_node_")
        assert not counter or rest == "[" or "dollars" in name, "of a counter the rate is drawn, but of a sum of money"


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_filter_is_a_label_that_is_scraped() -> None:
    spec = of("metrics")["spec"]
    assert "ray.io/cluster" in spec["podTargetLabels"]  # Prometheus makes it ray_io_cluster
    head = of("annotate-cluster")["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert {one["port"] for one in spec["podMetricsEndpoints"]} <= {port["name"] for port in head["ports"]}
