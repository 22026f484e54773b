"""The rules of the house, kept by reading the sources: who imports whom, how large a room is, where a name is at home.

docs/explanation/architecture.md says why. A rule that does not hold yet names its exceptions in
tests/architecture.json; that list may only shrink.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "anmi_ray"
STANDING: dict[str, Any] = json.loads((ROOT / "tests" / "architecture.json").read_text(encoding="utf-8"))

DOMAINS = ("comparisons", "corpus", "evaluation", "judging", "mining", "queries", "rating", "retrieval", "training")
# Lowest first. A room imports from lower rows and itself; rooms of one row know nothing of each other.
LAYERS = (
    ("core",),
    ("config",),
    ("store",),
    ("tables",),
    ("models",),
    DOMAINS,
    ("labelling", "reports"),
    ("runtime",),
    ("stages",),
    ("pipeline",),
    ("planning", "tuning"),
    ("api",),
    ("serving",),
    ("cli",),
)
RAY_ROOMS = ("runtime", "stages", "pipeline", "tuning", "serving")
HEAVY = ("ray", "torch", "transformers", "sentence_transformers", "deepspeed", "vllm", "faiss", "jnius", "altair")
MAX_LINES = 400
MAX_FUNCTION_LINES = 60


@dataclass(frozen=True)
class Import:
    """One imported module: absolute dotted name, whether inside a function, whether for type checking only."""

    path: Path
    line: int
    target: str
    deferred: bool
    typing_only: bool

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.target}"

    @property
    def top(self) -> str:
        """The package that is imported."""
        return self.target.split(".")[0]

    @property
    def room(self) -> str:
        """The room of anmi_ray that is imported, "" for other packages."""
        names = self.target.split(".")
        return names[1] if names[0] == "anmi_ray" and len(names) > 1 else ""


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parents = path.relative_to(ROOT).with_suffix("").parts
    base = parents[: len(parents) - node.level]
    return ".".join((*base, *((node.module or "").split(".") if node.module else ())))


def _is_typing_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _imports_of(path: Path) -> Iterator[Import]:
    def walk(node: ast.AST, deferred: bool, typing_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for name in child.names:
                    yield Import(path, child.lineno, name.name, deferred, typing_only)
            elif isinstance(child, ast.ImportFrom):
                module = _absolute(path, child)
                for name in child.names:
                    yield Import(path, child.lineno, f"{module}.{name.name}", deferred, typing_only)
            else:
                inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                yield from walk(child, deferred or inside, typing_only or _is_typing_guard(child))

    yield from walk(_tree(path), False, False)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def _imports(*folders: Path) -> list[Import]:
    return [found for folder in folders for path in _sources(folder) for found in _imports_of(path)]


def _room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


PACKAGE_IMPORTS = _imports(PACKAGE)
MODULES = {_module(path): path for path in _sources(PACKAGE)}


def _beyond(rule: str, found: list[str]) -> list[str]:
    """What breaks a rule beyond the exceptions that still stand; a place's line number does not count."""
    known = set(STANDING["exceptions"].get(rule, ()))
    return [one for one in found if re.sub(r":\d+", "", one) not in known]


def test_no_module_lies_loose() -> None:
    loose = sorted(path.name for path in PACKAGE.glob("*.py"))
    assert loose == ["__init__.py", "__main__.py"]
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == {room for row in LAYERS for room in row}


def test_a_room_imports_what_stands_below_it() -> None:
    height = {room: row for row, rooms in enumerate(LAYERS) for room in rooms}
    upward = [
        str(one)
        for one in PACKAGE_IMPORTS
        if (mine := _room_of(one.path)) in height
        and one.room in height
        and one.room != mine
        and height[one.room] >= height[mine]
    ]
    assert _beyond("upward", upward) == []


def test_the_reader_sees_every_form_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "anmi_ray" / "rating" / "example.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import ray.data as rd\n"
        "from anmi_ray.core import scale\n"
        "from ..judging import panel\n"
        "from . import prior\n"
        "if TYPE_CHECKING:\n    import torch\n"
        "class A:\n    def f(self):\n        if self:\n            from vllm import LLM\n"
    )
    seen = [(found.target, found.deferred, found.typing_only) for found in _imports_of(path)]
    assert seen == [
        ("ray.data", False, False),
        ("anmi_ray.core.scale", False, False),
        ("anmi_ray.judging.panel", False, False),
        ("anmi_ray.rating.prior", False, False),
        ("torch", False, True),
        ("vllm.LLM", True, False),
    ]


def _edges() -> dict[str, set[str]]:
    """By module, those that it imports, wherever and whatever for."""
    edges: dict[str, set[str]] = defaultdict(set)
    for one in PACKAGE_IMPORTS:
        name = one.target
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        mine = _module(one.path)
        # a package's face hands names on; what asks the face of its own package is tied to the module behind it
        if name and name != mine:
            edges[mine].add(name)
    return edges


def _circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in edges.get(name, ()):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            component = sorted(stack[at:])
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    for name in sorted(MODULES):
        if name not in index:
            visit(name)
    return sorted(found)


def test_no_circle_of_imports() -> None:
    assert _beyond("circles", [" <-> ".join(names) for names in _circles(_edges())]) == []


def test_a_circle_would_be_seen() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert MODULES.keys() >= {"anmi_ray.cli"}
    found: list[list[str]] = []
    for name in edges:
        MODULES.setdefault(name, PACKAGE)
    try:
        found = _circles(edges)
    finally:
        for name in edges:
            del MODULES[name]
    assert found == [["a", "b", "c"]]


def test_a_package_hands_on_no_name_that_another_of_its_modules_would_take() -> None:
    """Importing `rating/preferences.py` later would put the module where `rating.preferences` was a function."""
    taken = [
        f"{path.relative_to(ROOT)}: {name.asname or name.name}"
        for path in _sources(PACKAGE)
        if path.name == "__init__.py"
        for node in _tree(path).body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if f"{_module(path)}.{name.asname or name.name}" in MODULES
        and node.module not in (f"{_module(path)}.{name.asname or name.name}", _module(path))
    ]
    assert taken == []


def test_only_rooms_of_ray_import_ray() -> None:
    outside = [str(one) for one in PACKAGE_IMPORTS if one.top == "ray" and _room_of(one.path) not in RAY_ROOMS]
    outside += [str(found) for found in _imports(ROOT / "cluster") if found.top == "ray"]
    assert outside == []


def test_what_a_cluster_needs_knows_nothing_of_what_runs_on_it() -> None:
    found = _imports(ROOT / "cluster")
    assert found
    assert [str(one) for one in found if one.room not in ("", "core", "__version__")] == []
    assert [str(one) for one in PACKAGE_IMPORTS if one.top == "cluster"] == []


@pytest.mark.parametrize("engine", ["vllm", "deepspeed", "peft"])
def test_engines_are_imported_in_one_module_and_inside_functions(engine: str) -> None:
    found = [one for one in PACKAGE_IMPORTS if one.top == engine]
    assert len({one.path for one in found}) <= 1
    assert [str(one) for one in found if not (one.deferred or one.typing_only)] == []


@pytest.mark.parametrize("domain", [name for name in DOMAINS if name != "training"])
def test_mathematics_does_not_load_torch_with_the_module(domain: str) -> None:
    heavy = ("torch", "transformers", "sentence_transformers", "deepspeed")
    mine = [one for one in PACKAGE_IMPORTS if _room_of(one.path) == domain and one.top in heavy]
    assert [str(one) for one in mine if not (one.deferred or one.typing_only)] == []


def test_no_module_is_imported_by_a_computed_name() -> None:
    found: list[str] = []
    for path in _sources(PACKAGE):
        for node in ast.walk(_tree(path)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called.split(".")[-1] in ("import_module", "__import__") and not (
                node.args and isinstance(node.args[0], ast.Constant)
            ):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    homes = ("anmi_ray/judging/kinds/__init__.py:",)  # a kind of judges stands in the file of its name
    assert [one for one in found if not one.startswith(homes)] == []


def test_a_stages_name_stands_at_home() -> None:
    """What carries stages out, plans them or keeps what they make knows none by its name.

    A name that is another word too stands among the exceptions like any other: the split train, the groups
    of settings judge and mine and the phase sample of mine where a run's settings are changed, the role compare.
    """
    stages = {
        str(keyword.value.value)
        for path in _sources(PACKAGE / "stages")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Stage", "replace")
        for keyword in node.keywords
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant)
    }
    assert {"ingest", "refit", "report"} <= stages
    found = {
        f"{path.relative_to(ROOT)} {node.value}"
        for room in ("store", "runtime", "pipeline", "planning", "tuning")
        for path in _sources(PACKAGE / room)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in stages
    }
    assert _beyond("stages' names", sorted(found)) == []


def test_class_names_are_unique() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in _sources(PACKAGE):
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(ROOT)))
    twice = [f"{name}: {', '.join(sorted(places))}" for name, places in homes.items() if len(places) > 1]
    assert _beyond("class names", sorted(twice)) == []


def test_kinds_of_judges_are_told_apart_at_home() -> None:
    """Only judging/kinds asks of which kind a judge's settings are."""
    kinds = {
        node.name
        for path in (PACKAGE / "config").glob("*.py")
        for node in _tree(path).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("JudgeConfig")
    }
    assert len(kinds) >= 5
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
        for path in _sources(PACKAGE)
        if path.parent != PACKAGE / "judging" / "kinds"
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "isinstance"
        and {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)} & kinds
    ]
    assert _beyond("kinds of judges", found) == []


@pytest.mark.parametrize(
    "statement",
    [
        "import anmi_ray.cli",
        "import anmi_ray; anmi_ray.load",
        "import anmi_ray.config.experiment",
        "import anmi_ray.core.records, anmi_ray.rating",
        "from anmi_ray.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from anmi_ray.cli import main\ntry: main(['rate', '--help'])\nexcept SystemExit: pass",
        "import anmi_ray.api.doctor as d; assert len(d.report()) > 20",
        "import os, tempfile; from anmi_ray.cli import main; os.chdir(tempfile.mkdtemp())\n"
        "open('p.csv', 'w').write('query_id,doc_a,doc_b,preference\\nq,a,b,1\\n')\n"
        "try: main(['rate', 'p.csv', '--prior', '1', '--out', 'o.csv'])\n"
        "except SystemExit as done: assert not done.code, done",
        "import os, tempfile; from anmi_ray.cli import main; os.chdir(tempfile.mkdtemp())\n"
        "open('p.csv', 'w').write('query_id,doc_a,doc_b,preference\\nq,a,b,1\\n')\n"
        "try: main(['audit', 'p.csv'])\n"
        "except SystemExit as done: assert not done.code, done",
    ],
)
def test_commands_load_neither_torch_nor_ray(statement: str) -> None:
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    modules = json.loads(done.stdout.splitlines()[-1])
    assert "anmi_ray" in modules
    assert [name for name in HEAVY if name in modules] == []


def _loaded_by(modules: str, among: tuple[str, ...]) -> list[str]:
    """Which of `among` are loaded where `modules` are imported, in a new process."""
    code = f"import sys, {modules}\nprint(*[name for name in {among} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout.splitlines()[-1].split()


@pytest.mark.slow
def test_stages_load_no_model_code_before_they_need_it() -> None:
    """Every driver, controller and task imports stages; seconds each, for what few of them use."""
    stages = sorted(name for name in MODULES if name.startswith("anmi_ray.stages."))
    heavy = (
        "transformers.modeling_utils",
        "transformers.models.auto.modeling_auto",
        "sentence_transformers",
        "sklearn",
    )
    assert _loaded_by(", ".join(stages), heavy) == []


def test_what_merges_loads_neither_index_nor_model() -> None:
    heavy = ("torch", "transformers", "faiss", "bm25s", "numba")
    assert _loaded_by("anmi_ray.stages.retrieve.merging", heavy) == []


def test_stages_say_what_they_are_without_what_carries_them_out() -> None:
    heavy = ("ray", "torch", "transformers", "numba")
    assert _loaded_by("anmi_ray.pipeline.stages, anmi_ray.pipeline.run", heavy) == []


@pytest.mark.slow
def test_the_training_loop_runs_without_ray() -> None:
    code = "import sys, anmi_ray.training.loop; sys.exit('ray' in sys.modules or 'deepspeed' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, timeout=300, check=False)
    assert done.returncode == 0


def test_files_and_functions_are_short() -> None:
    long: list[str] = []
    for path in _sources(PACKAGE):
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > MAX_LINES:
            long.append(f"{path.relative_to(ROOT)}")
        for node in ast.walk(_tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > MAX_FUNCTION_LINES:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert _beyond("long", long) == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in _sources(PACKAGE)
        if path.read_text(encoding="utf-8").strip() and not ast.get_docstring(_tree(path))
    ]
    assert silent == []


def test_what_is_public_is_used_by_more_than_tests() -> None:
    """By name: a function or class of a module that the package, the jobs and the documented API never say again."""
    told = [path for folder in (PACKAGE, ROOT / "jobs", ROOT / "cluster") for path in _sources(folder)]
    told += [path for path in PACKAGE.rglob("templates/*") if path.is_file()]
    told += [ROOT / "docs" / "reference" / "python.md", ROOT / "pyproject.toml"]
    words = Counter(word for path in told for word in re.findall(r"\w+", path.read_text(encoding="utf-8")))
    unused = [
        f"{path.relative_to(ROOT)} {node.name}"
        for path in _sources(PACKAGE)
        for node in _tree(path).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and not node.decorator_list  # a command is found by what decorates it
        and words[node.name] == 1
    ]
    assert _beyond("unused", unused) == []


def test_paths_named_in_docstrings_exist() -> None:
    """A path of this repository that a docstring names is there."""
    gone: list[str] = []
    for path in _sources(PACKAGE):
        for node in ast.walk(_tree(path)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                for name in re.findall(
                    r"\b(?:anmi_ray|jobs|cluster|docs|tests)/[\w./-]*\w", ast.get_docstring(node) or ""
                ):
                    if not (ROOT / name).exists():
                        gone.append(f"{path.relative_to(ROOT)}: {name}")
    assert gone == []
