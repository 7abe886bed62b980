"""The collector stands alone: standard library only, Python 3.8, nothing else of this project."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "traceanalyzer" / "collect"
MODULES = sorted(FOLDER.rglob("*.py"))
BUNDLED = {"pynvml"}
"""Comes with the one-file build; everything works without it."""
HOSTS = {"torch", "transformers", "vllm", "sglang"}
"""What the recorded process has imported itself."""
# What later Pythons added to modules that an older one has, and that is easily used by mistake.
TOO_NEW = {"removeprefix", "removesuffix", "pairwise", "batched", "to_thread", "getLevelNamesMapping", "randbytes"}


def _imports(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_a_module_needs_nothing_that_is_not_there(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    inside = path.parent.name == "inside"
    allowed = set(sys.stdlib_module_names) | (HOSTS | {"_traceanalyzer_inside", "sitecustomize"} if inside else BUNDLED)
    assert _imports(tree) <= allowed
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not used & TOO_NEW


def test_the_supervisor_loads_no_heavy_module() -> None:
    """What it imports before the command starts is what the command waits for."""
    code = (
        "import sys; import traceanalyzer.collect.inside.layout, traceanalyzer.collect.facts\n"
        "print([name for name in ('torch', 'numpy', 'pandas', 'typer') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
