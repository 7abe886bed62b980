"""The public face: what can be imported, what it does, and that importing it is cheap."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import traceanalyzer
from traceanalyzer import analyze, read_trace, render
from traceanalyzer.errors import InputError, TraceAnalyzerError

SAMPLE = Path(__file__).resolve().parent.parent / "samples" / "tiny-llama-cpu-batch4.json.gz"


def test_exported_members() -> None:
    public = {name for name, value in vars(traceanalyzer).items() if inspect.isfunction(value) and name[0] != "_"}
    assert public | {"__version__"} == set(traceanalyzer.__all__)
    for name in traceanalyzer.__all__:
        assert name == "__version__" or inspect.getdoc(getattr(traceanalyzer, name))


def test_importing_is_cheap() -> None:
    heavy = {"pandas", "numpy", "typer", "pydantic", "torch"}
    code = f"import sys, traceanalyzer; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_a_trace_becomes_every_rendering() -> None:
    report = analyze([read_trace(SAMPLE)])
    assert json.loads(render(report, "json")) == json.loads(report.to_json())
    assert render(report).lower().startswith("<!doctype html>")
    assert render(report, "html") == render(report)
    assert "prefill" in render(report, "markdown")
    assert "prefill" in render(report, "text")


def test_what_cannot_be_read_is_one_of_our_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_trace(tmp_path / "missing.json")
    (tmp_path / "empty.json").write_text("")
    with pytest.raises(TraceAnalyzerError):
        read_trace(tmp_path / "empty.json")
