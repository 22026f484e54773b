"""A small campaign over the small collection: real trainings of four steps, some of which fail on purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.models.tiny import write_tiny_bert
from tests.small import write_config

SEED = 2  # the last of four trials is one that fails
SPACE: dict[str, Any] = {
    "train.learning_rate": {"kind": "loguniform", "low": 1e-5, "high": 5e-3},
    "mining": {
        "kind": "options",
        "options": {
            "usual": {
                "mine.rule": "penalised",
                "mine.weigh": {"rule": "posterior"},
                "mine.weigh.penalty": {"kind": "uniform", "low": 0.0, "high": 2.0},
            },
            # valid, and no query has so many negatives: such a trial fails when it has mined
            "scarce": {"mine.allow": [{"rule": "rank-window", "first": 900}], "mine.random_negatives": 0},
        },
    },
}


def write_campaign(folder: Path, collection: Path, **more: Any) -> Path:
    """A campaign's file, its experiment's file beside it, its root below `folder`."""
    tiny = write_tiny_bert(folder / "tiny")
    experiment = write_config(folder / "small.yaml", collection)
    content = {
        "name": "tiny",
        "experiment": str(experiment),
        "settings": {
            "train.model": str(tiny),
            "train.max_steps": 4,
            "train.lists_per_step": 4,
            "train.engine": "ddp",
            "train.dev_points": [0.5, 1.0],
            "execution.root": str(folder / "root"),
        },
        "space": SPACE,
        "trials": 4,
        "random": 4,
        "asha": {"grace": 0.5, "reduction": 16.0},  # few go on: some are stopped
        "repeats": 1,
        "seed": SEED,
        **more,
    }
    path = folder / "tiny.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
