"""The pages of results: each says how its figures were made, has them as data, and is named in the index."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "results"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index")
FACTS = ("Command", "Commit", "Date", "Machine")


def test_there_are_pages() -> None:
    assert len(PAGES) >= 20


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_how_its_figures_were_made(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    counts = {fact: len(re.findall(rf"^- {fact}: \S", text, flags=re.MULTILINE)) for fact in FACTS}
    assert min(counts.values()) == max(counts.values()) >= 1
    assert re.search(r"^- Date: 20\d\d-\d\d-\d\d", text, flags=re.MULTILINE)
    record = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert record["study"] == name
    assert all(record[fact.lower()] for fact in FACTS)


@pytest.mark.parametrize("name", PAGES)
def test_its_data_are_its_tables(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8").replace("\\|", "|")
    record = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    tables = [table for part in record.get("benchmarks", [record]) for table in part["tables"]]
    assert tables
    for table in tables:
        for row in (table["columns"], *table["rows"]):
            assert len(row) == len(table["columns"])
            assert f"| {' | '.join(row)} |".replace("|  |", "| |").replace("|  |", "| |") in text


def test_the_index_names_every_page_and_links_exist() -> None:
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) == set(PAGES)
    for path in FOLDER.glob("*.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (FOLDER / link).is_file(), f"{path.name}: {link}"
