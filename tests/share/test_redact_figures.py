"""Redaction keeps every figure of the report: over all real and damaged traces, before and after, leaf by leaf."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SHARED
from traceanalyzer import analyze, read_trace
from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.share.redact import redact_file

FOLDER = SHARED / "traces"
FILES = sorted(path.name for path in FOLDER.iterdir()) if FOLDER.is_dir() else []
ABOUT_THE_FILE = {"/report_id", "/redaction"} | {
    f"/traces/0/{key}" for key in ("name", "sha256", "format", "bytes", "collector")
}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a document that is not about the file itself; of a list also its length."""
    if path in ABOUT_THE_FILE:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}/{key}")
    elif isinstance(value, list):
        yield f"{path}#", len(value)
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{path}/{number}")
    elif path.endswith("/frame"):  # a file's name, which redaction takes: that there is one stays
        yield path, value is not None
    else:
        yield path, value


def figures(path: Path) -> dict[str, Any]:
    """The report's leaves; of a file without a report the error."""
    try:
        return dict(leaves(analyze([read_trace(path)]).model_dump(mode="json")))
    except TraceAnalyzerError as error:
        return {"error": type(error).__name__}


def test_the_traces_are_there(traces: Path) -> None:
    assert sorted(path.name for path in traces.iterdir()) == FILES


@pytest.mark.parametrize("name", FILES)
def test_every_figure_is_the_same(traces: Path, tmp_path: Path, name: str) -> None:
    level: Any = "strict" if len(name) % 2 else "default"
    before = figures(traces / name)
    try:
        redact_file(traces / name, tmp_path / "out.json.gz", level)
    except TraceAnalyzerError as error:
        assert before == {"error": type(error).__name__}
        return
    after = figures(tmp_path / "out.json.gz")
    assert after == before
    assert len(before) > 400 or "error" in before
