"""Names a redacted file: what tells windows, ranks and phases apart stays, hosts and people's words go.

The collector's own names name a hash, a process, a rank and a time, and stay as they are. Of others the ranks
(`rank0`, `TP-0`), the stages (`EXTEND`, `DECODE`) and the times stay, with a hash of the whole. What could be wrong: a
file that somebody named after a time keeps it, whatever that time means.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath

from traceanalyzer.share.redact.levels import digest

_OURS = re.compile(
    r"(traceanalyzer-[0-9a-f]{12}-\d{1,10}-rank\d{1,10}-\d{8}T\d{6}\.\d{1,9}Z)(?:\.pt)?\.trace\.json\b.*", re.ASCII
)
_REDACTED = re.compile(r"trace(?:-[A-Za-z]+\d*|-\d+)*-[0-9a-f]{12}\.json\.gz", re.ASCII)
_PART = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:rank|tp|dp|pp|ep|cp)[_-]?\d{1,6}|EXTEND|DECODE|PREFILL|MIXED|(?:extend|decode|prefill)"
    r"|\d{8}T?\d{6}Z?|\d{10,19})(?![A-Za-z0-9])",
    re.ASCII | re.IGNORECASE,
)
_SUFFIX = ".json.gz"


def redacted_name(name: str) -> str:
    """The name for the redacted copy of a file, without folders; always `.json.gz`.

    Args:
        name: the file's name, or its path.
    """
    base = PureWindowsPath(PurePosixPath(name).name).name
    if ours := _OURS.fullmatch(base):
        return f"{ours[1]}.pt.trace{_SUFFIX}"
    if _REDACTED.fullmatch(base):
        return base
    parts = [re.sub(r"[_-]", "", part) for part in _PART.findall(base)]
    return "-".join(["trace", *parts, digest(base)]) + _SUFFIX
