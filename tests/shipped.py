"""The configurations that come with the project: experiments, and campaigns around them, which are other files."""

from __future__ import annotations

from pathlib import Path

_FILES = sorted((Path(__file__).parents[1] / "jobs" / "configs").glob("*.yaml"))
CAMPAIGNS = [path for path in _FILES if path.stem.startswith("tune-")]
EXPERIMENTS = [path for path in _FILES if path not in CAMPAIGNS]
