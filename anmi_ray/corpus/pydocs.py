"""The embedded collection: the docstrings of this Python's standard library, read from its sources, never imported.

A document is a public module, class or function: its qualified name, signature and docstring without the summary.
A query is a docstring's summary sentence, and its relevant documents are all objects that share that sentence.
So finding an object by what it does needs no labels, no network and no download.
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
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.records import SPLITS
from anmi_ray.corpus.parsing import Document, Judged, Query
from anmi_ray.corpus.reader import Reader
from anmi_ray.corpus.splits import QueryRow, split_of, text_key
from anmi_ray.tables.streams import LineError

EXTRACTION_VERSION = 1
MIN_SUMMARY_WORDS = 4  # shorter ones ("Close the file.") name no object
MIN_BODY_WORDS = 4  # of the docstring without the summary; with less only the name could be found
MAX_SHARED = 8  # a sentence of more objects is boilerplate
_TURNS = 10  # rounds of removing copies of the summary from a docstring
_WORK = 10**8  # product of both lengths, in characters, above which a docstring is hostile
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
    summary: str
    body: str
    place: str


class PydocsReader(Reader):
    """Reads the standard library's sources and those of `packages`. Raises ConfigError for an absent package."""

    def __init__(self, config: CorpusConfig) -> None:
        super().__init__(config)
        self._files = source_files(config.packages)
        self._groups: dict[str, list[PythonObject]] = {}  # by summary
        self._pairs: dict[str, list[tuple[str, Judged]]] = {split: [] for split in SPLITS}  # with places
        read = (*config.labels, *config.hidden)
        self.judged_splits = tuple(split for split in SPLITS if split in read)
        self.unread = tuple(f"qrels of {split} queries" for split in SPLITS if split not in read)

    def content_fingerprint(self) -> str:
        """Hash of the extraction's version, Python's version, and every source file's name and content."""
        h = hashlib.blake2b(f"pydocs {EXTRACTION_VERSION} {sys.version_info[:3]}".encode(), digest_size=16)
        for module, path in self._files:
            raw = path.read_bytes()
            h.update(f"\0{module}\0{len(raw)}\0".encode())
            h.update(raw)
        return h.hexdigest()

    def _document_records(self) -> Iterator[tuple[str, Document | LineError]]:
        """Objects in order of module and line, without private ones and those without a docstring."""
        names: set[str] = set()
        for module, path in self._files:
            try:
                objects = list(_documented(path.read_bytes(), module))
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # all that parsing may raise
                yield f"{module}:1", LineError("not parsable", module, str(error))
                continue
            for name, line, docstring, declared in objects:
                place = f"{module}:{line}"
                if name in names:  # a property's setter, or the other branch of an if
                    yield place, LineError("defined twice", name, malformed=False)
                    continue
                names.add(name)
                found = PythonObject(name, *split_docstring(docstring), place)
                self._groups.setdefault(_collapsed(_query_text(found.summary)), []).append(found)
                yield place, (name, name, f"{declared}\n{found.body}".rstrip())

    def _query_records(self) -> Iterator[tuple[str, Query | LineError]]:
        """Summaries that say enough; a query's id is the name of its first object."""
        rows: list[tuple[str, Query]] = []
        for objects in self._groups.values():
            first = objects[0]
            if reason := _unfit(objects):
                yield first.place, LineError(reason, first.name, first.summary, malformed=False)
            else:
                rows.append((first.place, (first.name, _query_text(first.summary))))
        shares = (self.config.dev_share, self.config.test_fraction)
        splits = split_of([text_key(text) for _, (_, text) in rows], *shares, self.config.split_seed)
        for (place, (name, text)), split in zip(rows, splits, strict=True):
            objects = self._groups[_collapsed(text)]
            self._pairs[split] += [(place, (name, one.name, 1)) for one in objects]
            yield place, (name, text)

    def _qrel_records(self, split: str) -> Iterator[tuple[str, Judged | LineError]]:
        """Grade 1 for every object that shares a query's sentence."""
        return iter(self._pairs[split])

    def _carve_dev(self, rows: list[QueryRow]) -> list[QueryRow]:
        return rows  # the dev split exists, even if its labels are not read


def _documented(source: bytes, module: str) -> Iterator[tuple[str, int, str, str]]:
    """Yield (name, line, docstring, signature) of a module's public objects that have a docstring."""
    collects = gc.isenabled()
    # Up to Python 3.11.7 a finalizer that parses too ends this with a SystemError (CPython's issue 106905).
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # invalid escapes in other people's sources
            warnings.simplefilter("ignore", DeprecationWarning)
            tree = ast.parse(source)
    finally:
        if collects:
            gc.enable()
    for name, node in [(module, tree), *_members(tree.body, module)]:
        docstring = ast.get_docstring(node)
        if docstring and docstring.strip():
            declared = signature(node, name)
            f"{docstring}{declared}".encode()  # ValueError for half of a surrogate pair, which UTF-8 cannot hold
            yield name, getattr(node, "lineno", 1), docstring, declared


def source_files(packages: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Return (module name, file) of the standard library and of `packages`, sorted; nothing is imported."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = _modules_below(root, "")
    if not files:
        remedy = "use a Python with its library's sources, or corpus.reader: beir"
        raise DataError(f"no Python sources in {root}", "corpus pydocs", remedy)
    for package in packages:
        place, remedy = "corpus.packages", f"remove {package}"
        if package in sys.stdlib_module_names:
            raise ConfigError(f"{package} is in the standard library, which is read anyway", place, remedy)
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise ConfigError(f"package {package} is not installed", place, f"pip install {package}, or remove it")
        locations = spec.submodule_search_locations or ()
        found = [module for location in locations for module in _modules_below(Path(location), package)]
        if spec.origin and spec.origin.endswith(".py") and not spec.submodule_search_locations:
            found.append((package, Path(spec.origin)))
        if not found:
            raise ConfigError(f"package {package} has no Python sources", place, remedy)
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
    """Return an object's declaration: "def f(a, b=1)", "class C(Base)", "module m".

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
    """Return the summary sentence, and the docstring without any copy of it.

    >>> split_docstring("Return the sum.  Fast.\\n\\nReturn the sum. Not exact.")
    ('Return the sum.', 'Fast.\\n\\n Not exact.')
    """
    text = inspect.cleandoc(docstring).strip()
    paragraph = re.split(r"\n\s*\n", text, maxsplit=1)[0]
    line = " ".join(paragraph.split())
    match = _SENTENCE.match(line)
    summary = match.group(1) if match else line
    # The summary is the text's first words, in any spacing.
    last = next(islice(re.finditer(r"\S+", text), len(summary.split()) - 1, None))
    body = text[last.end() :]
    for sentence in (summary, _query_text(summary)):
        # Repeated, since removing a copy may join its neighbors into another.
        for turn in count():
            if not sentence or _collapsed(sentence) not in _collapsed(body):
                break
            if turn == _TURNS or len(sentence) * len(body) > _WORK:
                return summary, ""  # hostile: it would take too long
            copies = r"\s+".join(re.escape(word) for word in sentence.split())
            shorter = re.sub(copies, "", body, flags=re.IGNORECASE)
            if shorter == body:
                break
            body = shorter
    return summary, body.strip()


def _query_text(summary: str) -> str:
    return _NAMED.sub("", summary).rstrip(".").strip()


def _collapsed(text: str) -> str:
    return " ".join(text.split()).casefold()


def _unfit(objects: list[PythonObject]) -> str:
    """Return why the summary of these objects cannot be a query, or ""."""
    text = _query_text(objects[0].summary)
    if _SIGNATURE.search(text):
        return "summary is code"
    if len(re.findall(r"[A-Za-z]{2,}", text)) < MIN_SUMMARY_WORDS:
        return f"summary under {MIN_SUMMARY_WORDS} words"
    if text.endswith(":"):
        return "summary is cut off"
    if len(objects) > MAX_SHARED:
        return f"sentence of more than {MAX_SHARED} objects"
    if max(len(one.body.split()) for one in objects) < MIN_BODY_WORDS:
        return f"no document with {MIN_BODY_WORDS} words after the summary"
    return ""
