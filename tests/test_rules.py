"""The architecture's four rules, kept by reading the imports of every module."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "anmi_ray"

DOMAINS = ("comparisons", "corpus", "evaluation", "judging", "mining", "rating", "retrieval", "training")
FLOOR = ("config", "errors", "identity", "jdk", "models", "records", "rows", "scale", "schema", "secrecy")
# inside the floor, the lower ones know nothing of the upper ones
FLOOR_MAY_IMPORT = {
    "errors": (),
    "identity": ("errors",),
    "jdk": ("errors",),
    "scale": ("errors",),
    "secrecy": (),
    "schema": ("errors", "identity"),
    "records": ("identity", "schema"),
    "rows": ("errors", "records"),
    "config": ("environment", "errors", "identity", "scale"),
    "models": ("config", "errors", "identity", "scale"),
}
HEAVY = ("ray", "torch", "transformers", "sentence_transformers", "deepspeed", "vllm", "faiss", "jnius")
MAX_LINES = 450
MAX_FUNCTION_LINES = 80


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
        return self.target.split(".")[0]

    @property
    def part(self) -> str:
        """The part of anmi_ray that is imported ("rating", "records"), or "" for other packages."""
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
                for (
                    name
                ) in child.names:  # `from anmi_ray import scale` names a part, `from numpy import ndarray` does not
                    target = f"{module}.{name.name}" if module == "anmi_ray" else module
                    yield Import(path, child.lineno, target, deferred, typing_only)
            else:
                inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                yield from walk(child, deferred or inside, typing_only or _is_typing_guard(child))

    yield from walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)), False, False)


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def _imports(*folders: Path) -> list[Import]:
    return [found for folder in folders for path in _sources(folder) for found in _imports_of(path)]


def _part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


PACKAGE_IMPORTS = _imports(PACKAGE)


def test_the_reader_sees_the_package() -> None:
    parts = {_part_of(path) for path in _sources(PACKAGE)}
    assert parts >= {*DOMAINS, *FLOOR, "stages", "cli", "experiment", "store"}
    assert len(PACKAGE_IMPORTS) > 300
    for domain in DOMAINS:
        mine = [found for found in PACKAGE_IMPORTS if _part_of(found.path) == domain]
        assert any(found.part in FLOOR for found in mine), f"{domain} imports nothing of the floor: is it read?"
    assert any(found.top == "ray" and _part_of(found.path) == "stages" for found in PACKAGE_IMPORTS)


def test_the_reader_sees_every_form_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "anmi_ray" / "rating" / "example.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import ray.data as rd\n"
        "from anmi_ray import scale\n"
        "from ..judging import panel\n"
        "from . import prior\n"
        "if TYPE_CHECKING:\n    import torch\n"
        "class A:\n    def f(self):\n        if self:\n            from vllm import LLM\n"
    )
    seen = [(found.target, found.deferred, found.typing_only) for found in _imports_of(path)]
    assert seen == [
        ("ray.data", False, False),
        ("anmi_ray.scale", False, False),
        ("anmi_ray.judging", False, False),
        ("anmi_ray.rating", False, False),
        ("torch", False, True),
        ("vllm", True, False),
    ]


def test_only_stages_and_jobs_import_ray() -> None:
    outside = [str(found) for found in PACKAGE_IMPORTS if found.top == "ray" and _part_of(found.path) != "stages"]
    tests = [found for found in _imports(ROOT / "tests") if found.top == "ray"]
    allowed = {"stages", "jobs", "canaries", "faults", "benchmarks", "conftest.py", "heads.py"}
    outside += [str(found) for found in tests if found.path.relative_to(ROOT / "tests").parts[0] not in allowed]
    outside += [str(found) for found in _imports(ROOT / "cluster") if found.top == "ray"]
    assert outside == []


def test_what_a_cluster_needs_knows_nothing_of_what_runs_on_it() -> None:
    found = _imports(ROOT / "cluster")
    assert found
    assert [str(one) for one in found if one.part not in ("", "errors")] == []
    assert [str(one) for one in PACKAGE_IMPORTS if one.top == "cluster"] == []


@pytest.mark.parametrize("engine", ["vllm", "deepspeed", "peft"])
def test_engines_are_imported_in_one_module_and_inside_functions(engine: str) -> None:
    found = [one for one in PACKAGE_IMPORTS if one.top == engine]
    assert len({one.path for one in found}) <= 1
    assert [str(one) for one in found if not (one.deferred or one.typing_only)] == []


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_domain_imports_the_floor_and_itself(domain: str) -> None:
    mine = [found for found in PACKAGE_IMPORTS if _part_of(found.path) == domain]
    assert mine
    assert [str(found) for found in mine if found.part and found.part not in (*FLOOR, domain)] == []


@pytest.mark.parametrize("part", FLOOR)
def test_the_floor_rests_on_itself(part: str) -> None:
    mine = [found for found in PACKAGE_IMPORTS if _part_of(found.path) == part]
    assert mine
    assert [str(found) for found in mine if found.part and found.part not in (*FLOOR_MAY_IMPORT[part], part)] == []


@pytest.mark.parametrize("domain", [name for name in DOMAINS if name != "training"])
def test_mathematics_does_not_load_torch_with_the_module(domain: str) -> None:
    heavy = ("torch", "transformers", "sentence_transformers", "deepspeed")
    mine = [one for one in PACKAGE_IMPORTS if _part_of(one.path) == domain and one.top in heavy]
    assert [str(one) for one in mine if not (one.deferred or one.typing_only)] == []


@pytest.mark.parametrize(
    "statement",
    [
        "import anmi_ray.cli",
        "import anmi_ray.config.experiment",
        "import anmi_ray.records, anmi_ray.rating",
        "from anmi_ray.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from anmi_ray.cli import main\ntry: main(['rate', '--help'])\nexcept SystemExit: pass",
        "import anmi_ray.doctor as d; assert len(d.report()) > 20",
        "import os, tempfile; from anmi_ray.cli import main; os.chdir(tempfile.mkdtemp())\n"
        "open('p.csv', 'w').write('query_id,doc_a,doc_b,preference\\nq,a,b,1\\n')\n"
        "try: main(['rate', 'p.csv', '--prior', '1', '--out', 'o.csv', '--plot', 'o.html'])\n"
        "except SystemExit as done: assert not done.code, done",
        "import os, tempfile; from anmi_ray.cli import main; os.chdir(tempfile.mkdtemp())\n"
        "open('p.csv', 'w').write('query_id,doc_a,doc_b,preference\\nq,a,b,1\\n')\n"
        "try: main(['audit', 'p.csv', '--plot', 'o.html'])\n"
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


def test_stages_load_no_model_code_before_they_need_it() -> None:
    """Every driver, controller and task imports stages; seconds each, for what few of them use."""
    stages = sorted(f"anmi_ray.stages.{path.stem}" for path in (PACKAGE / "stages").glob("[!_]*.py"))
    heavy = (
        "transformers.modeling_utils",
        "transformers.models.auto.modeling_auto",
        "sentence_transformers",
        "sklearn",
    )
    code = f"import sys, {', '.join(stages)}\nprint(*[name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.splitlines()[-1] == ""


def test_the_training_loop_runs_without_ray() -> None:
    code = "import sys, anmi_ray.training.loop; sys.exit('ray' in sys.modules or 'deepspeed' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, timeout=300, check=False)
    assert done.returncode == 0


def test_files_and_functions_are_short() -> None:
    long: list[str] = []
    for path in _sources(PACKAGE):
        text = path.read_text(encoding="utf-8")
        if (lines := text.count("\n")) > MAX_LINES:
            long.append(f"{path.relative_to(ROOT)}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > MAX_FUNCTION_LINES:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {size} lines")
    assert long == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in _sources(PACKAGE)
        if path.read_text(encoding="utf-8").strip()
        and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []
