"""Says where the time of an LLM generation run went, from a PyTorch profiler trace.

The public face: read, analyze, render; everything else may change between versions. The imports stand inside the
functions, so that `import traceanalyzer` and the command's `--help` load no tables and no chart library.

    >>> from traceanalyzer import analyze, read_trace, render
    >>> report = analyze([read_trace("trace.json.gz")])
    >>> page = render(report, "html")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from traceanalyzer.analysis.pipeline import AnalysisOptions
    from traceanalyzer.report.document import Report
    from traceanalyzer.trace.tables import Trace

__all__ = ["__version__", "analyze", "read_trace", "render"]

__version__ = "0.1.0"


def read_trace(path: str | Path) -> Trace:
    """Read one trace file, or standard input for "-".

    Raises:
        InputError: the path cannot be read.
        UnsupportedTraceError: the file is no PyTorch profiler trace.
        CorruptTraceError: nothing of the file can be saved.
    """
    from traceanalyzer.trace import read_trace as read

    return read(path)


def analyze(traces: Sequence[Trace], options: AnalysisOptions | None = None) -> Report:
    """The report on one run: `traces` are its ranks and windows, usually one.

    Raises:
        InputError: the traces are not of one run.
        UnsupportedTraceError: a trace holds neither GPU kernels nor CPU operators that can be analysed.
        UnknownGPUError: `options` names a GPU that the catalogue does not hold.
    """
    from traceanalyzer.analysis.pipeline import AnalysisOptions as Options
    from traceanalyzer.analysis.pipeline import analyze as run
    from traceanalyzer.report.build import build

    return build(run(traces, options or Options()))


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
