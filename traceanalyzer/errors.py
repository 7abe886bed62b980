"""Every error a user can meet, as one small tree.

    TraceAnalyzerError        exit code 2
    |- InputError             the request or the path cannot be used as given
    |- UnsupportedTraceError  the file is readable, but nothing in it can be analysed
    |- CorruptTraceError      the file is damaged beyond what can be salvaged
    |- UnknownGPUError        a GPU id that the catalogue does not hold
    `- GateFailed             a comparison gate failed (exit code 1)

`traceanalyzer.__main__.main` is the one place that prints them: one line, with a hint where there is one.
"""

from __future__ import annotations


class TraceAnalyzerError(Exception):
    """What is wrong, in one line, and what the user can do about it.

    Args:
        message: what is wrong, naming the file by its base name; no trailing full stop needed.
        hint: what to do next, or None.
    """

    exit_code = 2

    def __init__(self, message: str, hint: str | None = None) -> None:
        """Keep the two parts apart, so that a caller may show them apart."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """The message and the hint on one line."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InputError(TraceAnalyzerError):
    """The request or the path cannot be used as given."""


class UnsupportedTraceError(TraceAnalyzerError):
    """The file was read, but holds nothing that can be analysed."""


class CorruptTraceError(TraceAnalyzerError):
    """The file is damaged beyond what can be salvaged."""


class UnknownGPUError(TraceAnalyzerError):
    """A GPU id that the catalogue does not hold."""


class GateFailed(TraceAnalyzerError):
    """A comparison gate failed."""

    exit_code = 1
