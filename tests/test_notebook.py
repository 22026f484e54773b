"""The notebook of the documentation, cell by cell as a kernel runs it: what a cell ends with shows itself."""

from __future__ import annotations

import ast
import builtins
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from anmi_ray import Run

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tutorials" / "notebook.ipynb"


def shown(code: str, names: dict[str, Any]) -> Any:
    """What a cell shows: the value of its last line, if that is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None


@pytest.mark.usefixtures("ray_local")
def test_every_cell_runs_and_shows_what_the_text_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    names: dict[str, Any] = {}
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    found = [shown("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    run = next(one for one in found if isinstance(one, Run))
    assert "notebook" in run._repr_html_()
    best, rated = (one for one in found if isinstance(one, pd.DataFrame))
    assert len(best) == 4
    assert best["document"].str.contains("median|dedent|stdev|variance|wrap|fill").sum() >= 3
    assert rated.sort_values("rating_elo")["doc_id"].iloc[-1] == "x"
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("✓")][-1] == "rate"
