"""A Grafana dashboard of a cluster: runs, judging, nodes, work, engines; metrics of this package, Ray and vLLM.

Ray adds `ray_` to every name and `_total` to counters. Ray's own dashboards go further into nodes and datasets: they
are on a head, in /tmp/ray/session_latest/metrics/grafana/dashboards.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_COLUMNS, _HEIGHT = 24, 8  # of Grafana's grid
_ON = 'ray_io_cluster=~"$cluster"'  # a label of pods, given to their metrics by the PodMonitor; absent on machines


@dataclass(frozen=True)
class Panel:
    """A graph of time series: legend and query of each, where $on stands for the filter by cluster."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]


ROWS: dict[str, tuple[Panel, ...]] = {
    "Runs": (
        Panel(
            "Share of each stage that is done",
            "percentunit",
            (
                (
                    "{{run}} {{stage}}: {{unit}}",
                    "max by (run, stage, unit) (ray_anmi_stage_done{$on}) / "
                    "max by (run, stage, unit) (ray_anmi_stage_size{$on})",
                ),
                ("{{run}} training", "max by (run) (ray_anmi_train_share{$on})"),
            ),
        ),
        Panel(
            "Rows a second, as buckets are completed",
            "rowsps",
            (
                (
                    "{{run}} {{stage}}: {{unit}}, {{kind}}",
                    "sum by (run, stage, unit, kind) (rate(ray_anmi_rows_total{$on}[2m]))",
                ),
            ),
        ),
        Panel(
            "Seconds of each stage",
            "s",
            (("{{run}} {{stage}}", "max by (run, stage) (ray_anmi_stage_seconds{$on})"),),
        ),
        Panel(
            "Dev measure in training",
            "short",
            (("{{run}}: dev", "max by (run) (ray_anmi_train_dev{$on})"),),
        ),
    ),
    "Judging": (
        Panel(
            "Questions not answered yet, and nodes",
            "short",
            (
                ("{{judge}}: questions", "max by (judge) (ray_anmi_judge_queue{$on})"),
                ("nodes: {{NodeType}}", "sum by (NodeType) (autoscaler_active_nodes{$on})"),
            ),
        ),
        Panel(
            "Answers and failures a second",
            "ops",
            (
                ("{{judge}}: answers", "sum by (judge) (rate(ray_anmi_judge_answers_total{$on}[2m]))"),
                ("{{judge}}: failures", "sum by (judge) (rate(ray_anmi_judge_failures_total{$on}[2m]))"),
            ),
        ),
        Panel(
            "Tokens a second",
            "short",
            (
                ("{{judge}}: read", "sum by (judge) (rate(ray_anmi_judge_prompt_tokens_total{$on}[2m]))"),
                ("{{judge}}: of them cached", "sum by (judge) (rate(ray_anmi_judge_cached_tokens_total{$on}[2m]))"),
                ("{{judge}}: written", "sum by (judge) (rate(ray_anmi_judge_answer_tokens_total{$on}[2m]))"),
            ),
        ),
        Panel(
            "Dollars, since each judge's budget actor started",
            "currencyUSD",
            (("{{judge}}", "sum by (judge) (ray_anmi_judge_dollars_total{$on})"),),
        ),
    ),
    "Nodes": (
        Panel(
            "Nodes by kind",
            "short",
            (
                ("{{NodeType}}", "sum by (NodeType) (autoscaler_active_nodes{$on})"),
                ("{{NodeType}}: coming", "sum by (NodeType) (autoscaler_pending_nodes{$on})"),
                ("{{NodeType}}: lost", "sum by (NodeType) (autoscaler_recently_failed_nodes{$on})"),
            ),
        ),
        Panel(
            "GPUs and CPUs taken, of those there are",
            "percentunit",
            tuple(
                (
                    name,
                    f'sum(ray_resources{{Name="{name}",State="USED",$on}}) / sum(ray_resources{{Name="{name}",$on}})',
                )
                for name in ("GPU", "CPU")
            ),
        ),
        Panel(
            "GPUs at work, by node",
            "percent",
            (("{{instance}}", "avg by (instance) (ray_node_gpus_utilization{$on})"),),
        ),
        Panel(
            "Memory and disk, by node",
            "percentunit",
            (
                (
                    "{{instance}}: memory",
                    "sum by (instance) (ray_node_mem_used{$on}) / sum by (instance) (ray_node_mem_total{$on})",
                ),
                (
                    "{{instance}}: disk",
                    "sum by (instance) (ray_node_disk_usage{$on}) / "
                    "(sum by (instance) (ray_node_disk_usage{$on}) + sum by (instance) (ray_node_disk_free{$on}))",
                ),
            ),
        ),
    ),
    "Work": (
        Panel(
            "Tasks under way, by state",
            "short",
            (("{{State}}", 'clamp_min(sum by (State) (ray_tasks{State!~"FINISHED|FAILED",$on}), 0)'),),
        ),
        Panel(
            "Rows a second, by operator",
            "rowsps",
            (("{{dataset}} {{operator}}", "sum by (dataset, operator) (rate(ray_data_output_rows{$on}[2m]))"),),
        ),
        Panel(
            "Object store, by where it lies",
            "bytes",
            (("{{Location}}", "sum by (Location) (ray_object_store_memory{$on})"),),
        ),
        Panel(
            "Network, all nodes",
            "Bps",
            (
                ("received", "sum(ray_node_network_receive_speed{$on})"),
                ("sent", "sum(ray_node_network_send_speed{$on})"),
            ),
        ),
    ),
    "Engines (where a judge has execution.metrics: true)": (
        Panel(
            "Prompts",
            "short",
            (
                ("under way", "sum(ray_vllm_num_requests_running{$on})"),
                ("waiting", "sum(ray_vllm_num_requests_waiting{$on})"),
            ),
        ),
        Panel(
            "Share of prompts' tokens found in the cache",
            "percentunit",
            (
                (
                    "hits",
                    "sum(rate(ray_vllm_prefix_cache_hits_total{$on}[2m])) / "
                    "sum(rate(ray_vllm_prefix_cache_queries_total{$on}[2m]))",
                ),
                ("cache in use", "avg(ray_vllm_kv_cache_usage_perc{$on})"),
            ),
        ),
    ),
}


def dashboard() -> str:
    """The dashboard as Grafana imports it."""
    content = {
        "uid": "anmi-ray",
        "title": "anmi_ray",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), _cluster()]},
        "panels": _panels(),
    }
    return json.dumps(content, indent=2) + "\n"


def _panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    y = 0
    for title, panels in ROWS.items():
        found.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1}})
        width = _COLUMNS // len(panels)
        for place, panel in enumerate(panels):
            found.append(_graph(panel) | {"gridPos": {"x": place * width, "y": y + 1, "w": width, "h": _HEIGHT}})
        y += 1 + _HEIGHT
    return [one | {"id": number} for number, one in enumerate(found, start=1)]


def _graph(panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi"}, "legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "legendFormat": legend,
                "expr": query.replace("$on", _ON),
                "datasource": source,
            }
            for place, (legend, query) in enumerate(panel.series)
        ],
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _cluster() -> dict[str, Any]:
    return {
        "name": "cluster",
        "label": "Cluster",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": "label_values(ray_node_mem_total, ray_io_cluster)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",  # also where there is no such label
        "current": {"text": "All", "value": "$__all"},
    }
