"""The notebooks of docs/: their code runs from top to bottom, and none is stored with what it once showed."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import pytest

DOCS = pathlib.Path(__file__).parent.parent / "docs"
NOTEBOOKS = sorted(DOCS.glob("**/*.ipynb"))

SHOW = """
def show(value):
    if hasattr(value, "_repr_png_"):
        assert value._repr_png_().startswith(b"\\x89PNG")
        print("[picture]")
    elif value is not None:
        print(repr(value))
"""
"""What a notebook does with the last expression of a cell."""


def code(path: pathlib.Path) -> str:
    """The cells as a program that shows the last expression of each that ends in one."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = ["import ast", SHOW]
    for cell in cells:
        if cell["cell_type"] == "code":
            parts.append(f"""
cell = ast.parse({"".join(cell["source"])!r})
last = cell.body.pop() if isinstance(cell.body[-1], ast.Expr) else None
exec(compile(cell, "<cell>", "exec"), globals())
if last is not None:
    show(eval(compile(ast.Expression(last.value), "<cell>", "eval"), globals()))
""")
    return "\n".join(parts)


def run(path: pathlib.Path, folder: pathlib.Path) -> str:
    command = [sys.executable, "-W", "error", "-c", code(path)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    return done.stdout


@pytest.mark.slow
def test_the_answers_of_analyze_are_those_of_its_made_up_truth(tmp_path):
    printed = run(DOCS / "analyze.ipynb", tmp_path)
    sizes = {budget: int(n) for budget, n in re.findall(r"([\d,]+) rollouts: n = (\d+),", printed)}
    assert sizes == {"8,000": 4, "100,000": 16, "1,000,000": 64}
    assert len(re.findall(r"n = \d+: 0\.\d+, -?\d\.\d+ less", printed)) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_stored_small_and_without_outputs(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], path.stat().st_size < 20_000) == (4, True)
    for cell in notebook["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)


def test_every_notebook_is_run():
    assert [path.name for path in NOTEBOOKS] == ["analyze.ipynb"]
