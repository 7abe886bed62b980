"""What a linter does not check: sizes, docstrings first, and where a broad `except` may stand."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "traceanalyzer").rglob("*.py"))
# What runs in a recorded command's own processes: whatever fails in it ends here, and the command goes on.
IN_A_STRANGERS_PROCESS = {f"traceanalyzer/collect/inside/{name}.py" for name in ("sitecustomize", "guard")}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("name", MODULES)
def test_modules_and_functions_stay_small(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert not text.strip() or ast.get_docstring(tree), "a module says first what it does"
    assert len(text.splitlines()) <= 400
    long = [n.name for n in ast.walk(tree) if isinstance(n, FUNCTIONS) and (n.end_lineno or 0) - n.lineno >= 60]
    assert not long


@pytest.mark.parametrize("name", MODULES)
def test_no_error_is_swallowed_and_nothing_is_printed(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or (isinstance(node.type, ast.Name) and node.type.id.endswith("Exception"))
            # Tidying up and letting the error go on is no swallowing.
            assert (
                not broad
                or name in IN_A_STRANGERS_PROCESS
                or (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None)
            )
        assert not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print")


def test_no_todo_is_left_and_no_page_reaches_out() -> None:
    for folder in ("traceanalyzer", "templates"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in (".py", ".html", ".css", ".js", ".svg"):
                text = path.read_text(encoding="utf-8")
                assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text), path
                if folder == "templates":
                    assert not re.search(r"(?:src|href)=[\"']?https?:|@import|url\((?!#)", text), path
