"""anmi demo: offline and without Ray it comes to its end, and what it prints can be given again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pyarrow.csv
import pytest

from tests.commands import printed, refused


@pytest.mark.slow
def test_the_demo_finds_the_judge_who_leans_and_leaves_files_behind(tmp_path: Path) -> None:
    to = tmp_path / "my demo"
    said = printed("demo", "--to", to)
    leaning = dict(re.findall(r"judge ([\w-]+): ([+-]\d+) Elo points", said))
    assert int(leaning["first-glance"]) > 100
    assert abs(int(leaning["careful"])) < 60
    ratings = pyarrow.csv.read_csv(to / "ratings.csv").to_pylist()
    assert {row["query_id"] for row in ratings} == {
        row["query_id"] for row in pyarrow.csv.read_csv(to / "gaps.csv").to_pylist()
    }
    assert all(row["std_err_elo"] > 0 for row in ratings)
    commands = re.findall(r"^\$ anmi (.*)$", said, flags=re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["audit", "rate", "rerank", "evaluate"]
    again = printed(*shlex.split(commands[-1]))
    assert again in said
    assert "is not empty" in refused("demo", "--to", to)
