"""Sizes and wording of the codebase stay within limits that may only fall: tests/architecture.json, under "limits"."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIMITS = "tests/architecture.json"
pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository's files and history")
TEXT = (".py", ".j2", ".jinja", ".html", ".css", ".js", ".txt", ".sh")

# Phrases that readers stumble over, in docstrings, comments, messages and pages, each with what to write instead.
PHRASES = {
    r"\b(?:is|are|was|were) no\b(?! (?:longer|more|less|fewer|other))": "is not a; expected X, got Y",
    r"\b(?:is|are|were|was) none\b": "there is no X",
    r"\bwhoever\b|\bwhither\b|\b(?:some|any|no)body\b": "the caller, the client, the user; unset",
    r"\bin the place of\b": "instead of",
    r"\b(?:can|could)(?:not)? be told\b|\btold apart\b|\b(?:is|are|not|that is) told\b": "significant, distinguishable",
    r"\bmend(?:s|ed|ing)?\b": "fix, repair",
    r"\bforetell(?:s|ing)?\b|\bforetold\b|\bforesee[ns]?\b": "predict, estimate",
    r"\bdear(?:er|est)?\b": "expensive",
    r"\b(?:go(?:es)?|went|gone) on\b": "continue, resume",
    r"\bat work\b": "running",
    r"\bcarr(?:y|ies|ied|ying) out\b": "run",
    r"\bstands?\b|\bstood\b": "is; appears",
    r"\bby itself\b|\bof its own\b": "alone; its own",
    r"\bbeside\b": "next to",
    r"\bso (?:late|far|many|much|few)\b": "the quantity",
    r"\bhand(?:s|ed)? on\b": "pass, export",
    r"\bsds\b|\bSds\b": "standard deviations",
    r"\b(?:says?|said) of\b|\bwhat is said\b|\bwhat it said\b": "name the value",
    r"\bWhat (?:is|was|a|an|the|of|can|may|has|it|they|judges|users)\b[^?]*\.$": "a noun phrase",
    r"^Of (?:a|an|the|every|each|all|which)\b": "For a",
}


def _tracked(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()})


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def _prose(path: Path) -> Iterator[str]:
    """Lines of docstrings, comments and strings of Python files; all lines of others."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from text.splitlines()
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            yield from (line.strip() for line in token.string.strip("rbfuRBFU").strip("\"'# ").splitlines())


def _phrases(paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {line.strip()[:90]}  -> {instead}"
        for path in paths
        for line in _prose(path)
        for pattern, instead in PHRASES.items()
        if re.search(pattern, line)
    ]


def _settings() -> int:
    """Fields that the classes of anmi_ray/config declare."""
    return sum(
        isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not item.target.id.startswith("_")
        for path in (ROOT / "anmi_ray" / "config").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        for item in node.body
    )


def _sizes() -> dict[str, int]:
    package = [path for path in _tracked("anmi_ray") if path.suffix in TEXT]
    sizes = Counter({"anmi_ray": 0, "files of anmi_ray": len(package), "settings": _settings()})
    for path in package:
        folder = path.relative_to(ROOT).parts[1]
        sizes["anmi_ray"] += _lines(path)
        if (ROOT / "anmi_ray" / folder).is_dir():
            sizes[f"anmi_ray/{folder}"] += _lines(path)
    for folder in ("tests", "jobs"):
        sizes[folder] = sum(_lines(path) for path in _tracked(folder) if path.suffix in TEXT)
    return dict(sizes)


def _limits(revision: str | None = None) -> dict[str, int]:
    """The limits in the working tree, or in a commit; empty if that commit has none."""
    if revision is None:
        text = (ROOT / LIMITS).read_text(encoding="utf-8")
    else:
        command = ["git", "show", f"{revision}:{LIMITS}"]
        text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return json.loads(text).get("limits", {})


def _totals(limits: dict[str, int]) -> dict[str, int]:
    """The limits of which none may rise; those of packages together."""
    packages = sum(limit for name, limit in limits.items() if "/" in name)
    return {"packages": packages} | {name: limit for name, limit in limits.items() if "/" not in name}


def test_sizes_are_within_their_limits() -> None:
    limits, sizes = _limits(), _sizes()
    assert {name: (size, limits[name]) for name, size in sizes.items() if size > limits[name]} == {}
    assert set(limits) == {*sizes, "phrases in anmi_ray", "phrases in docs"}


def test_phrases_are_within_their_limits() -> None:
    limits = _limits()
    in_package = _phrases([path for path in _tracked("anmi_ray") if path.suffix in TEXT])
    pages = [path for path in _tracked("README.md", "CHANGELOG.md", "docs") if path.suffix == ".md"]
    in_docs = _phrases([path for path in pages if "results" not in path.parts])
    assert len(in_package) <= limits["phrases in anmi_ray"], "\n".join(in_package)
    assert len(in_docs) <= limits["phrases in docs"], "\n".join(in_docs)


def test_no_commit_raises_a_limit() -> None:
    """Each total is at most the lowest of the commits on this branch: a package's limit rises as far as others fall."""
    command = ["git", "log", "--first-parent", "--format=%H", "--", LIMITS]
    revisions = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    history = [_totals(limits) for revision in revisions if (limits := _limits(revision))]
    raised = {
        name: (limit, lowest)
        for name, limit in _totals(_limits()).items()
        if limit > (lowest := min((earlier.get(name, limit) for earlier in history), default=limit))
    }
    assert raised == {}


@pytest.mark.parametrize("text", ["Whoever asks is no client.", "It stands here.", "They carry out a stage."])
def test_a_phrase_is_found(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(f'"""{text}"""\nstand = "plain text"\n', encoding="utf-8")
    assert _phrases([path])
    path.write_text('"""Return the number of pages that the user reads."""\n', encoding="utf-8")
    assert _phrases([path]) == []
