"""The study of refinement, small and end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.studies.small_study import carried_out


@pytest.mark.studies
def test_a_small_study(tmp_path: Path) -> None:
    found = carried_out("refinement", tmp_path, "--rounds", "2")
    systems = ("judged", "refined-1", "refined-2", "continued-1", "continued-2")
    assert set(found["values"]["levels"]) == {f"whole-0 {system}" for system in systems}
    [table] = [table for table in found["tables"] if table["title"].startswith("What a round asked")]
    assert [row[:2] for row in table["rows"]] == [["whole-0", "1"], ["whole-0", "2"]]
    compared = [(row["system"], row["reference"]) for row in found["values"]["differences"]]
    assert ("whole-0: refined-2", "continued-2") in compared
