"""The analysis child: reads one trace and writes its report, one file per rendering.

    python -m traceanalyzer.server.child TRACE FOLDER      page.html, report.json, report.md, summary.json
    python -m traceanalyzer.server.child --check           what this process cannot do, as JSON

It ends with 2 and one line where the trace cannot be analysed, as the command line does. What could be wrong: it trusts
its caller to have confined it (`sandbox.run_child`); run by hand it has every right of its user.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from traceanalyzer.errors import TraceAnalyzerError

if TYPE_CHECKING:
    from traceanalyzer.report.document import Report

SUMMARY = "summary.json"
RENDERINGS = {"page.html": "html", "report.json": "json", "report.md": "markdown"}
"""Name of the file -> the format of `traceanalyzer.render`."""

_SEVERITIES = ("info", "warning", "error")


def summary(report: Report) -> dict[str, object]:
    """What a list of traces shows of a report: units are in the names, None is unknown."""
    from traceanalyzer.report import rows

    figures = rows.flatten(report)
    device = rows.slowest_device(report)
    worst = max((_SEVERITIES.index(note.severity) for note in report.quality), default=None)
    return {
        "gpu": device.name if device else None,
        "model": report.run.model.name if report.run.model else None,
        # As the collector and who uploads by the client say it: "transformers", where the report says "Transformers".
        "engine": report.run.engine.lower() if report.run.engine else None,
        "host": report.traces[0].host_hash if report.traces else None,
        "weight_s": report.run.sample_weight,
        "headline": report.verdict.headline,
        "bound": report.verdict.bound,
        "workload": report.run.workload,
        "span_us": report.span.duration_us,
        # From start to start, as the headline has it; where that is not known, from a step's start to its end.
        "decode_step_us": figures.get("decode_floor.measured_us", figures.get("decode.step_us.p50")),
        "tokens_per_s": figures.get("decode.tokens_per_s"),
        "quality": None if worst is None else _SEVERITIES[worst],
        "report_id": report.report_id,
        "redaction": report.redaction.level if report.redaction else None,
    }


def write(report: Report, folder: Path) -> None:
    """Render everything into `folder`; the summary comes last and says that all is there."""
    from traceanalyzer import render

    for name, kind in RENDERINGS.items():
        _put(folder / name, render(report, kind))  # type: ignore[arg-type] # one of its own names
    _put(folder / SUMMARY, json.dumps(summary(report), allow_nan=False))


def _put(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8", newline="\n")
    part.replace(path)


def check() -> dict[str, str]:
    """What is refused to this process, found by trying; every trial is harmless where it succeeds."""
    trials: dict[str, Callable[[], object]] = {
        "network": lambda: socket.socket().close(),
        "files": lambda: os.scandir("..").close(),
        "processes": lambda: subprocess.run((sys.executable, "-c", ""), timeout=10, check=True),
    }
    return {name: _refused(trial) for name, trial in trials.items()}


def _refused(trial: Callable[[], object]) -> str:
    try:
        trial()
    except PermissionError:
        return "blocked"
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {type(error).__name__}"
    return "not blocked here"


def main(arguments: Sequence[str]) -> int:
    """Analyse, and return the exit code."""
    if list(arguments) == ["--check"]:
        sys.stdout.write(json.dumps(check()))
        return 0
    from traceanalyzer import analyze, read_trace

    trace, folder = Path(arguments[0]), Path(arguments[1])
    try:
        write(analyze([read_trace(trace)]), folder)
    except TraceAnalyzerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
