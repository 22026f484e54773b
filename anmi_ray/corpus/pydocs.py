"""The embedded collection: the docstrings of this Python's standard library, read from its sources, never imported.

A document is a public module, class or function: its qualified name, signature and docstring without the summary.
A query is a docstring's summary sentence, and its relevant documents are all objects that shared that sentence.
So finding the object from what it does needs no label, no network and no download.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path

import pyarrow as pa

from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.records import DOCUMENT, SPLITS
from anmi_ray.corpus.reader import QueryRow, Reader, qrel_table, split_of

EXTRACTION_VERSION = 1
MIN_SUMMARY_WORDS = 4  # shorter ones ("Close the file.") name no object
MIN_BODY_WORDS = 4  # of the docstring, without the summary: less leaves only the name to be found by
MAX_SHARED = 8  # a sentence of more objects than this is boilerplate
_TURNS = 10  # in which copies of the summary are taken out of a docstring
_WORK = 10**8  # characters of both, multiplied, that a turn may take
_SKIPPED = frozenset(
    {"test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "ensurepip", "distutils", "pydoc_data"}
    | {"site-packages", "dist-packages", "lib-dynload", "_vendor", "__pycache__"}
)
# A sentence ends at .!? before a capital, bracket or quote, so that "e.g. this" and "file.txt" do not end one.
_SENTENCE = re.compile(r"(.+?[.!?])(?=\s+[A-Z(`'\"*]|$)")
_NAMED = re.compile(r"^[\w.]+\s*(?:--|[-:–—])\s+(?=\S)")
_SIGNATURE = re.compile(r"^[\w.]+\(|^[\w.]+\s*=|>>>|->")


@dataclass(frozen=True)
class PythonObject:
    """A documented public object; `body` is its docstring without `summary`."""

    name: str
    signature: str
    summary: str
    body: str
    place: str


class PydocsReader(Reader):
    """Reads the standard library's sources and those of `packages`. Raises ConfigError for an absent package."""

    def __init__(self, config: CorpusConfig) -> None:
        super().__init__(config)
        self._files = source_files(config.packages)
        self._objects: list[PythonObject] = []
        self._relevant: dict[str, list[str]] = {}  # query's external id -> names of its objects
        self._hidden: dict[str, list[str]] = {}  # the same of queries whose labels are hidden

    def content_fingerprint(self) -> str:
        """Hash of the extraction's version, Python's version, and every source file's name and content."""
        h = hashlib.blake2b(f"pydocs {EXTRACTION_VERSION} {sys.version_info[:3]}".encode(), digest_size=16)
        for module, path in self._files:
            raw = path.read_bytes()
            h.update(f"\0{module}\0{len(raw)}\0".encode())
            h.update(raw)
        return h.hexdigest()

    def documents(self) -> Iterator[pa.Table]:
        """Documents in order of module and line; objects without a docstring and private ones are none."""
        self._objects = list(self._extract())
        self._check_fraction("documents")
        for start in range(0, len(self._objects), self.config.shard_documents):
            shard = self._objects[start : start + self.config.shard_documents]
            yield DOCUMENT.table(
                {
                    "doc_id": identity.id_array(identity.doc_id(thing.name) for thing in shard),
                    "external_id": [thing.name for thing in shard],
                    "title": [thing.name for thing in shard],
                    "text": [f"{thing.signature}\n{thing.body}".rstrip() for thing in shard],
                }
            )

    def queries(self) -> pa.Table:
        """Summary sentences that say enough; a query's external id is the name of its first object."""
        groups: dict[str, list[PythonObject]] = {}
        for thing in self._objects:
            groups.setdefault(_normal(thing.summary), []).append(thing)
        self._seen["queries"] += len(groups)
        rows = []
        for things in groups.values():
            first = things[0]
            reason = _unfit(things)
            if reason:
                self._refuse("queries", first.place, first.name, reason, first.summary, malformed=False)
            else:
                rows.append(QueryRow(first.name, _query_text(first.summary), "train", first.place))
                self._relevant[first.name] = [thing.name for thing in things]
        shares = (self.config.dev_share, self.config.test_fraction)
        splits = split_of([row.text_key for row in rows], *shares, self.config.split_seed)
        table = self._query_table(self._with_splits(rows, splits))
        kept = set(table["external_id"].to_pylist())
        self._relevant = {name: objects for name, objects in self._relevant.items() if name in kept}
        self._hidden = {name: objects for name, objects in self._hidden.items() if name in kept}
        return table

    def _with_splits(self, rows: list[QueryRow], splits: list[str]) -> list[QueryRow]:
        """The queries in their splits; those whose labels are not read are held out, train queries, or left out."""
        kept: list[QueryRow] = []
        pairs = list(zip(rows, splits, strict=True))
        labelled = {row.external_id for row, split in pairs if split in self.config.labels}
        held_out = self._held_out({row.external_id: row.text_key for row in rows}, labelled)
        for row, split in pairs:
            if split in self.config.labels:
                kept.append(replace(row, split=split))
                continue
            relevant = self._relevant.pop(row.external_id)
            if row.external_id in held_out or self.config.unlabelled == "train":
                kept.append(replace(row, split=held_out.get(row.external_id, "train")))
                self._hidden |= {row.external_id: relevant} if split in self.config.hidden else {}
            else:
                self._left_out += 1
        return kept

    @property
    def unread(self) -> tuple[str, ...]:
        read = (*self.config.labels, *self.config.hidden)
        return tuple(f"qrels of {split} queries" for split in SPLITS if split not in read)

    def qrels(self) -> pa.Table:
        """Grade 1 for every object that shared a query's sentence."""
        table = _qrels(self._relevant)
        self._seen["qrels"] += table.num_rows
        return table

    def hidden_qrels(self) -> pa.Table:
        """The same of the queries whose labels are hidden."""
        return _qrels(self._hidden)

    def _extract(self) -> Iterator[PythonObject]:
        names: set[str] = set()
        for module, path in self._files:
            try:
                objects = list(_documented(path.read_bytes(), module))
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # all that parsing may raise
                self._seen["documents"] += 1
                self._refuse("documents", f"{module}:1", module, "not parsable", str(error))
                continue
            for name, line, docstring, declared in objects:
                self._seen["documents"] += 1
                place = f"{module}:{line}"
                if name in names:  # a property's setter, or the other branch of an if
                    self._refuse("documents", place, name, "defined twice", malformed=False)
                    continue
                names.add(name)
                summary, body = split_docstring(docstring)
                yield PythonObject(name, declared, summary, body, place)


def _documented(source: bytes, module: str) -> Iterator[tuple[str, int, str, str]]:
    """(name, line, docstring, signature) of the public objects of a module that have a docstring."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # invalid escapes in other people's sources
        warnings.simplefilter("ignore", DeprecationWarning)
        tree = _parsed(source)
    for name, node in _public(tree, module):
        docstring = ast.get_docstring(node)
        if docstring and docstring.strip():
            declared = signature(node, name)
            f"{docstring}{declared}".encode()  # a ValueError: half of a surrogate pair, which no UTF-8 column can hold
            yield name, getattr(node, "lineno", 1), docstring, declared


def _parsed(source: bytes) -> ast.Module:
    """The syntax tree, made without collecting garbage meanwhile.

    Up to Python 3.11.7 a finalizer that parses too, or lets another thread do so, ends this with a SystemError
    (CPython's issue 106905).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if collects:
            gc.enable()


def _qrels(relevant: Mapping[str, Sequence[str]]) -> pa.Table:
    return qrel_table({(query, thing): 1 for query, things in relevant.items() for thing in things})


def source_files(packages: tuple[str, ...]) -> list[tuple[str, Path]]:
    """(module name, file) of the standard library and of `packages`, sorted; nothing is imported."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = _modules_below(root, "")
    if not files:
        raise DataError(
            f"no Python sources in {root}",
            "corpus pydocs",
            "use a Python with its library's sources, or corpus.reader: beir",
        )
    for package in packages:
        if package in sys.stdlib_module_names:
            raise ConfigError(
                f"{package} is in the standard library, which is read anyway", "corpus.packages", f"remove {package}"
            )
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise ConfigError(
                f"package {package} is not installed", "corpus.packages", f"pip install {package}, or remove it"
            )
        found: list[tuple[str, Path]] = []
        for location in spec.submodule_search_locations or ():
            found += _modules_below(Path(location), package)
        if spec.origin and spec.origin.endswith(".py") and not spec.submodule_search_locations:
            found.append((package, Path(spec.origin)))
        if not found:
            raise ConfigError(f"package {package} has no Python sources", "corpus.packages", f"remove {package}")
        files += found
    return sorted(files)


def _modules_below(root: Path, package: str) -> list[tuple[str, Path]]:
    found = []
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        if any(part in _SKIPPED or part.startswith("config-") for part in parts):
            continue
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        name = ".".join(filter(None, (package, *parts)))
        # Below the top level a leading underscore is private; at the top (_pydecimal, _pyio) it is where the text is.
        if name and not any(part.startswith("_") for part in name.split(".")[1:]):
            found.append((name, path))
    return found


def _public(tree: ast.Module, module: str) -> Iterator[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef]]:
    yield module, tree
    yield from _members(tree.body, module)


def _members(body: list[ast.stmt], parent: str) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            name = f"{parent}.{node.name}"
            yield name, node  # pyright: ignore[reportReturnType]
            if isinstance(node, ast.ClassDef):
                yield from _members(node.body, name)
        elif isinstance(node, ast.If | ast.Try):
            handlers = getattr(node, "handlers", [])
            for branch in (node.body, node.orelse, *(handler.body for handler in handlers)):
                yield from _members(branch, parent)


def signature(node: ast.AST, name: str) -> str:
    """How the object is declared: "def f(a, b=1)", "class C(Base)", "module m".

    >>> signature(ast.parse("def f(a, *, b=1) -> int: pass").body[0], "m.f")
    'def f(a, *, b=1) -> int'
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        prefix = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        return f"{prefix} {node.name}({ast.unparse(node.args)}){returns}"
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    return f"module {name}"


def split_docstring(docstring: str) -> tuple[str, str]:
    """The summary sentence, and what is left of the docstring when every copy of that sentence is taken out.

    >>> split_docstring("Return the sum.  Fast.\\n\\nReturn the sum. Not exact.")
    ('Return the sum.', 'Fast.\\n\\n Not exact.')
    """
    text = inspect.cleandoc(docstring).strip()
    paragraph = re.split(r"\n\s*\n", text, maxsplit=1)[0]
    line = " ".join(paragraph.split())
    match = _SENTENCE.match(line)
    summary = match.group(1) if match else line
    # The summary is the text's first words, however they are spaced.
    last = next(islice(re.finditer(r"\S+", text), len(summary.split()) - 1, None))
    body = text[last.end() :]
    for sentence in (summary, _query_text(summary)):
        # Repeated: taking a copy out may join its neighbours into another.
        for turn in count():
            if not sentence or _collapsed(sentence) not in _collapsed(body):
                break
            if turn == _TURNS or len(sentence) * len(body) > _WORK:
                return summary, ""  # made to take for ever: nobody writes so
            copies = r"\s+".join(re.escape(word) for word in sentence.split())
            shorter = re.sub(copies, "", body, flags=re.IGNORECASE)
            if shorter == body:
                break
            body = shorter
    return summary, body.strip()


def _query_text(summary: str) -> str:
    return _NAMED.sub("", summary).rstrip(".").strip()


def _normal(summary: str) -> str:
    return _collapsed(_query_text(summary))


def _collapsed(text: str) -> str:
    return " ".join(text.split()).casefold()


def _unfit(things: list[PythonObject]) -> str | None:
    """Why this sentence is no query, or None."""
    text = _query_text(things[0].summary)
    if _SIGNATURE.search(text):
        return "summary is code"
    if len(re.findall(r"[A-Za-z]{2,}", text)) < MIN_SUMMARY_WORDS:
        return f"summary under {MIN_SUMMARY_WORDS} words"
    if text.endswith(":"):
        return "summary is cut off"
    if len(things) > MAX_SHARED:
        return f"sentence of more than {MAX_SHARED} objects"
    if max(len(thing.body.split()) for thing in things) < MIN_BODY_WORDS:
        return f"no document with {MIN_BODY_WORDS} words beside the summary"
    return None
