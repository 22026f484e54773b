"""Folders of Markdown, HTML and plain text as documents: pages are split at headings, long sections at paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from anmi_ray.core.errors import DataError, from_file_error
from anmi_ray.corpus.table import TableReader
from anmi_ray.tables.streams import guessed_encoding

_KINDS = {".html": "html", ".htm": "html", ".txt": "text", **dict.fromkeys((".md", ".mdx", ".markdown"), "markdown")}
_LARGEST = 50_000_000  # bytes of a page
_LONGEST = 2000  # characters of a section that is not split
_HEADINGS = tuple(f"h{level}" for level in range(1, 7))
_SKIPPED = ("script", "style", "nav", "header", "footer", "template", "noscript")
_BLOCKS = ("p", "div", "li", "tr", "br", "pre", "section", "article", "table", "ul", "ol", "blockquote", "dt", "dd")
_FENCE = re.compile(r"^(```|~~~).*?^\1[`~]*\s*$", re.DOTALL | re.MULTILINE)
_FRONT_MATTER = re.compile(r"\A(---|\+\+\+)[ \t]*\r?\n(?=\w)(.*?)^\1[ \t]*$", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r"^title\s*[:=]\s*(['\"]?)(.+?)\1\s*$", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)


def is_folder_of_pages(path: Path) -> bool:
    """Return whether a folder holds more pages than tables."""
    if not path.is_dir():
        return False
    suffixes = [one.suffix.lower() for one in path.rglob("*")]
    return sum(one in _KINDS for one in suffixes) > sum(one in TableReader.kinds for one in suffixes)


def documents(folder: Path, encoding: str | None) -> Iterator[dict[str, str]]:
    """Yield id, title and text of every section of every page below `folder`, sorted by path.

    A title is the page's, then the section's. encoding: of all pages; None: UTF-8, or what is recognized.
    Raises DataError if there is no page, or one cannot be decoded.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in _KINDS and path.is_file()]
    paths = [path for path in paths if not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)]
    if not paths:
        raise DataError(f"expected tables or pages ({', '.join(_KINDS)}), got none", str(folder), "name another folder")
    for path in paths:
        name = path.relative_to(folder).as_posix()
        kind = _KINDS[path.suffix.lower()]
        text = _decoded(path, encoding)
        if kind == "html":
            parser = _Text()
            parser.feed(re.sub(r"(?is)<title>.*?</title>", "", text))  # it is left to the first heading
            parser.close()
            text = "".join(parser.text)
        front = _FRONT_MATTER.match(text) if kind == "markdown" else None
        named = _TITLE.search(front[2]) if front else None
        text = text[front.end() :] if front else text
        number = 0
        sections = [("", text)] if kind == "text" else list(_sections(text))
        page = named[2] if named else next((heading for heading, _ in sections if heading), path.stem)
        for heading, section in sections:
            title = page if heading in ("", page) else f"{page}: {heading}"
            for part in _parts(section):
                number += 1
                yield {"id": f"{name.replace(' ', '%20')}#{number}", "title": title, "text": part}


def _decoded(path: Path, encoding: str | None) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise from_file_error(error, str(path)) from None
    if len(data) > _LARGEST:
        raise DataError(f"expected a page of at most {_LARGEST:,} bytes", str(path), "split it, or move it elsewhere")
    for name in (encoding or "utf-8-sig", *([] if encoding else [guessed_encoding(data)])):
        try:
            return data.decode(name or "ascii")
        except (UnicodeDecodeError, LookupError):
            continue
    raise DataError(f"expected text in {encoding or 'UTF-8'}", str(path), "add --encoding NAME")


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield (heading, text below it) of Markdown, first what is above all headings, under "".

    Code blocks keep their place; a # in them is not a heading.
    """
    hidden = _FENCE.sub(lambda block: block[0].replace("#", "\0"), text)
    parts = _HEADING.split(hidden)
    for heading, section in zip(["", *parts[1::2]], [parts[0], *parts[2::2]], strict=True):
        yield heading.strip(), section.replace("\0", "#").strip()


def _parts(section: str) -> Iterator[str]:
    """Yield a section in pieces of at most `_LONGEST` characters where its paragraphs allow it."""
    piece = ""
    for paragraph in re.split(r"\n\s*\n", section):
        if piece and len(piece) + len(paragraph) > _LONGEST:
            yield piece
            piece = ""
        piece = f"{piece}\n\n{paragraph}".strip()
    if piece:
        yield piece


class _Text(HTMLParser):
    """Collects a page's text, with headings as in Markdown."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text: list[str] = []
        self._skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SKIPPED:
            self._skipped += 1
        elif tag in _HEADINGS:
            self.text.append("\n\n# ")
        elif tag in _BLOCKS:
            self.text.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SKIPPED:
            self._skipped = max(self._skipped - 1, 0)
        elif tag in _HEADINGS or tag in _BLOCKS:
            self.text.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.text.append(re.sub(r"\s+", " ", data).replace("#", "\0"))  # \0: not a heading, see _sections
