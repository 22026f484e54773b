"""anmi export --dataset: tables that others load, whole, by the collection's ids, with a card and nothing private."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard

import anmi_ray
from tests.commands import printed, refused


@pytest.mark.slow
def test_a_dataset_holds_the_run_s_tables_and_names_its_judges(
    prepared: Path, small_collection: Path, tmp_path: Path
) -> None:
    to = tmp_path / "data"
    printed("export", "small", "--root", prepared, "--dataset", to, "--license", "cc-by-4.0")
    run = anmi_ray.Run("small", root=prepared)
    for table in ("queries", "judgments", "ratings", "gaps"):
        assert pq.read_table(to / f"{table}.parquet").equals(run.table(table))
    assert sorted(file.name for file in to.iterdir()) == [
        "README.md",
        "gaps.parquet",
        "judgments.parquet",
        "queries.parquet",
        "ratings.parquet",
    ]
    card: Any = DatasetCard.load(to / "README.md")
    assert card.data.license == "cc-by-4.0"
    assert [config["config_name"] for config in card.data.configs] == ["queries", "judgments", "ratings", "gaps"]
    asked = run.table("judgments")["judge"].to_pylist()
    for judge in set(asked):
        assert f"| {judge} | simulated |  | {asked.count(judge):,} |" in card.text
    assert "The judges are simulated" in card.text
    assert str(small_collection) not in card.content
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset(str(to), "gaps", split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.num_rows == run.table("gaps").num_rows

    printed("export", "small", "--root", prepared, "--dataset", tmp_path / "whole", "--texts")
    texts = pq.read_table(tmp_path / "whole" / "texts.parquet").to_pylist()
    assert len({row["doc_id"] for row in texts}) == len(texts)
    assert {row["doc_id"] for row in run.table("ratings").to_pylist()} <= {row["doc_id"] for row in texts}
    assert (DatasetCard.load(tmp_path / "whole" / "README.md").data.to_dict())["license"] == "unknown"


def test_what_a_dataset_cannot_be_made_of_is_said(tmp_path: Path) -> None:
    from tests.cli.test_export import write_run

    write_run(tmp_path / "root", until="ingest")
    assert "judge stage is not complete" in refused(
        "export", "r1", "--root", tmp_path / "root", "--dataset", tmp_path / "out"
    )
    assert "--to FOLDER" in refused("export", "r1", "--root", tmp_path / "root")
    assert not (tmp_path / "out").exists()
