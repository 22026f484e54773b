"""Make a collection in BEIR layout out of a folder of Markdown: python markdown_collection.py FOLDER OUT

Each section is a document without its heading, and each heading a query whose known positive is its section: the
headings of pages as people write them stand in for what readers search. Every fifth query, by hash, is a test query.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

SHORTEST = 80  # characters of a section that is worth finding


def sections(page: str) -> list[tuple[str, str]]:
    """(heading, text below it) of a page, code blocks left out: their # are no headings."""
    page = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"^#+ (.+)$", page, flags=re.MULTILINE)
    return [(heading.strip(), text.strip()) for heading, text in zip(parts[1::2], parts[2::2], strict=True)]


def main(folder: Path, out: Path) -> None:
    """Write corpus.jsonl, queries.jsonl and qrels/{train,test}.tsv."""
    documents: list[dict[str, str]] = []
    queries: dict[str, dict[str, str]] = {}
    qrels: dict[str, list[str]] = {"train": [], "test": []}
    for path in sorted(folder.rglob("*.md")):
        for heading, text in sections(path.read_text(encoding="utf-8")):
            if len(text) < SHORTEST:
                continue
            documents.append({"_id": f"d{len(documents)}", "title": "", "text": text})
            query = queries.setdefault(heading.lower(), {"_id": f"q{len(queries)}", "text": heading})
            split = "test" if hashlib.sha256(heading.lower().encode()).digest()[0] % 5 == 0 else "train"
            qrels[split].append(f"{query['_id']}\t{documents[-1]['_id']}\t1")
    (out / "qrels").mkdir(parents=True, exist_ok=True)
    for name, rows in (("corpus", documents), ("queries", list(queries.values()))):
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for split, lines in qrels.items():
        text = "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
        (out / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")
    print(f"{len(documents)} documents, {len(qrels['train'])} train and {len(qrels['test'])} test judgments in {out}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python markdown_collection.py FOLDER OUT")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
