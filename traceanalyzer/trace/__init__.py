"""Reads recordings into columnar traces.

What is named here is loaded when it is first asked for: whoever only opens, redacts or checks a trace loads no tables.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceanalyzer.trace.reading import read_trace, read_traces
    from traceanalyzer.trace.tables import DeviceProperties, Metadata, Note, Source, Trace

__all__ = ["DeviceProperties", "Metadata", "Note", "Source", "Trace", "read_trace", "read_traces"]


def __getattr__(name: str) -> Any:
    """Load what is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{'reading' if name.startswith('read_') else 'tables'}")
    value = globals()[name] = getattr(module, name)
    return value
