"""What MkDocs calls while it builds: pages get their generated parts, and the menu lists every page of docs/results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docs.generate import filled

ROOT = Path(__file__).parents[1]


def on_files(files: Any, config: Any) -> Any:
    """Replace a menu entry that is a folder (`results/`) by the pages in it, index.md first."""
    for entry in config["nav"]:
        for title, target in entry.items():
            if isinstance(target, str) and target.endswith("/"):
                pages = [file.src_uri for file in files.documentation_pages() if file.src_uri.startswith(target)]
                entry[title] = sorted(pages, key=lambda page: (page != f"{target}index.md", page))
    config["nav"] = [entry for entry in config["nav"] if all(entry.values())]
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """A page with what it asks to be generated; the changelog is the file at the top of the repository."""
    if page.file.src_uri == "changelog.md":
        return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    return filled(markdown)
