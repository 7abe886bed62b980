"""Says where the time of an LLM generation run went, from a PyTorch profiler trace.

The public face: what `__all__` names; everything else may change between versions. The imports stand inside the
functions, and types are loaded when they are first asked for, so that `import traceanalyzer` and the command's
`--help` load no tables and no chart library.

    >>> from traceanalyzer import AnalysisOptions, analyze, read_trace, render
    >>> report = analyze([read_trace("trace.json.gz")], AnalysisOptions(gpu="a100-sxm4-80gb"))
    >>> report.verdict.headline
    >>> page = render(report, "html")

Every error is a `TraceAnalyzerError`; see `traceanalyzer.errors` for the tree.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

from traceanalyzer.errors import (
    CorruptTraceError,
    GateFailed,
    InputError,
    TraceAnalyzerError,
    UnknownGPUError,
    UnsupportedTraceError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from traceanalyzer.analysis.cost import Price
    from traceanalyzer.analysis.pipeline import AnalysisOptions
    from traceanalyzer.report.document import Report
    from traceanalyzer.trace.tables import Trace

__all__ = [
    "AnalysisOptions",
    "CorruptTraceError",
    "GateFailed",
    "InputError",
    "Price",
    "Report",
    "TraceAnalyzerError",
    "UnknownGPUError",
    "UnsupportedTraceError",
    "__version__",
    "analyze",
    "captures_beside",
    "read_trace",
    "read_traces",
    "render",
]

__version__ = "0.1.0"

_LAZY = {
    "AnalysisOptions": "traceanalyzer.analysis.pipeline",
    "Price": "traceanalyzer.analysis.cost",
    "Report": "traceanalyzer.report.document",
}


def __getattr__(name: str) -> Any:
    """Load a type when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What can be imported, loaded or not."""
    return sorted({*globals(), *_LAZY})


def read_trace(path: str | Path) -> Trace:
    """Read one trace file, or standard input for "-".

    Raises:
        InputError: the path cannot be read.
        UnsupportedTraceError: the file is no PyTorch profiler trace.
        CorruptTraceError: nothing of the file can be saved.
    """
    from traceanalyzer.trace import read_trace as read

    return read(path)


def read_traces(paths: Sequence[str | Path]) -> list[Trace]:
    """Read the traces of one run: files, and folders of which every trace is read, in the order of their names.

    Raises:
        InputError, UnsupportedTraceError, CorruptTraceError: as `read_trace`, of the first path that fails.
    """
    from traceanalyzer.trace import read_traces as read

    return read(paths)


def captures_beside(paths: Sequence[str | Path], traces: Sequence[Trace]) -> tuple[Trace, ...]:
    """Graph captures found in the folder of the one file given, for `AnalysisOptions.captures_beside`; often none.

    Args:
        paths: what `read_traces` was given.
        traces: what it returned.
    """
    from traceanalyzer.trace.captures import captures_beside as found

    return found(paths, traces)


def analyze(traces: Sequence[Trace], options: AnalysisOptions | None = None) -> Report:
    """The report on one run: `traces` are its ranks, one trace each; usually there is one.

    Raises:
        InputError: the traces are not the ranks of one run, or one rank is there twice.
        UnsupportedTraceError: a trace holds neither GPU kernels nor CPU operators that can be analysed.
        UnknownGPUError: `options` names a GPU that the catalogue does not hold.
    """
    from traceanalyzer.analysis.pipeline import analyze as run
    from traceanalyzer.report.build import build

    return build(run(traces, options))


def render(report: Report, format: Literal["html", "markdown", "text", "json"] = "html") -> str:
    """The report as a page, as Markdown for a ticket, as text for a terminal, or as the JSON document itself."""
    if format == "json":
        return report.to_json() + "\n"
    # Only what is asked for is loaded: the page brings the chart library.
    if format == "markdown":
        from traceanalyzer.report import markdown

        return markdown.render(report)
    if format == "text":
        from traceanalyzer.report import text

        return text.render(report)
    from traceanalyzer.report import html

    return html.render(report)
