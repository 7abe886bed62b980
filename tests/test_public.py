"""The public face: what can be imported, what it does, and that importing it is cheap."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import traceanalyzer
from traceanalyzer import (
    AnalysisOptions,
    InputError,
    Price,
    Report,
    TraceAnalyzerError,
    analyze,
    errors,
    read_trace,
    read_traces,
    render,
)

SAMPLE = Path(__file__).resolve().parent.parent / "samples" / "tiny-llama-cpu-batch4.json.gz"


FUNCTIONS = {"analyze", "captures_beside", "read_trace", "read_traces", "render"}
TYPES = {"AnalysisOptions", "Price", "Report"}
ERRORS = {
    "TraceAnalyzerError", "CorruptTraceError", "GateFailed", "InputError", "UnknownGPUError", "UnsupportedTraceError",
}  # fmt: skip


def test_exported_members() -> None:
    assert set(traceanalyzer.__all__) == FUNCTIONS | TYPES | ERRORS | {"__version__"}
    assert set(traceanalyzer.__all__) <= set(dir(traceanalyzer))
    for name in sorted(FUNCTIONS | TYPES | ERRORS):
        assert inspect.getdoc(getattr(traceanalyzer, name))
    public = {name for name, value in vars(traceanalyzer).items() if inspect.isfunction(value) and name[0] != "_"}
    assert public == FUNCTIONS
    raised = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert raised == ERRORS
    with pytest.raises(AttributeError, match="no attribute 'Analysis'"):
        _ = traceanalyzer.Analysis
    with pytest.raises(ImportError):
        exec("from traceanalyzer import nothing_of_the_kind")


def test_importing_is_cheap() -> None:
    heavy = {"pandas", "numpy", "typer", "pydantic", "torch"}
    code = f"import sys, traceanalyzer; dir(traceanalyzer); print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("name", sorted(TYPES))
def test_types_are_loaded_when_they_are_asked_for(name: str) -> None:
    """In a process of its own, for here they may be loaded already."""
    code = f"from traceanalyzer import {name} as asked; import traceanalyzer; print(asked is traceanalyzer.{name})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n"


def test_options_reach_the_analysis() -> None:
    options = AnalysisOptions(peaks_tflops={"fp32": 2.0}, bandwidth_gbs=50.0, price=Price(2.5, "EUR"))
    report = analyze(read_traces([SAMPLE]), options)
    assert isinstance(report, Report)
    assert report.devices[0].ridge_flop_per_byte == {"fp32": 40.0}
    assert report.cost
    assert (report.cost.price_per_gpu_hour, report.cost.currency) == (2.5, "EUR")


def test_the_command_reads_and_analyses_by_this_face_alone() -> None:
    source = (Path(traceanalyzer.__file__).parent / "commands" / "report.py").read_text(encoding="utf-8")
    imported = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    assert "traceanalyzer" in imported
    assert not {
        name for name in imported if name and name.startswith(("traceanalyzer.trace", "traceanalyzer.analysis"))
    }


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


@pytest.mark.parametrize(
    "given",
    [
        {"bandwidth_gbs": value} for value in (float("nan"), float("inf"), -1.0, 0.0, 1e300, 1e-300)
    ] + [{"peaks_tflops": {"bf16": -1.0}}, {"peaks_tflops": {"bf16": float("nan")}}, {"peaks_tflops": {"zz": 1.0}},
         {"price": traceanalyzer.Price(-2.0, "EUR")}],
)  # fmt: skip
def test_options_that_no_device_has_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(traceanalyzer.InputError, match=r"out of range|unknown dtype"):
        traceanalyzer.AnalysisOptions(**given)  # type: ignore[arg-type]
