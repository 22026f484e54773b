"""The pages of results: each begins with its answer, says how its figures were made, and has them as data."""

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


@pytest.mark.parametrize("name", PAGES)
def test_a_page_begins_with_its_answer_which_is_in_the_index(name: str) -> None:
    begin = re.match(r"# .+\n\n\*\*(.+\.)\*\*\n\n> .+\?", (FOLDER / f"{name}.md").read_text(encoding="utf-8"))
    assert begin is not None
    assert begin[1] in (FOLDER / "index.md").read_text(encoding="utf-8")


def test_the_index_has_ten_answers_and_every_page_once_and_links_exist() -> None:
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\((\w+)\.md\)", index)) == PAGES
    assert len(re.findall(r"^\| .*\.md\) \|$", index, flags=re.MULTILINE)) == 10
    for path in FOLDER.glob("*.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (FOLDER / link).is_file(), f"{path.name}: {link}"
