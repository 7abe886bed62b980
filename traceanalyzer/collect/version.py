"""Which release this is: of the installed package, or written into the one-file build."""

from __future__ import annotations

import pkgutil
from importlib import metadata

FILE = "VERSION"
"""Beside this module in the one-file build, and nowhere else."""
_DISTRIBUTION = "traceanalyzer-llm"


def tool_version() -> str:
    """The release, or `unknown`."""
    try:
        written = pkgutil.get_data(__package__, FILE)
    except OSError:
        written = None
    if written:
        return written.decode("ascii").strip()
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
