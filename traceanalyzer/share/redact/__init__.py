"""Takes out of a trace what must not travel, and says in it what was taken out.

What could be wrong: redaction knows shapes and places, not meanings. A secret that looks like the name of an op stays;
read `preview` before the first upload from a new place.
"""

from __future__ import annotations

from traceanalyzer.share.redact.facts import Facts, facts
from traceanalyzer.share.redact.filenames import redacted_name
from traceanalyzer.share.redact.levels import LEVELS, VERSION, Example, Level, Redaction
from traceanalyzer.share.redact.rewrite import preview, redact_file

__all__ = [
    "LEVELS",
    "VERSION",
    "Example",
    "Facts",
    "Level",
    "Redaction",
    "facts",
    "preview",
    "redact_file",
    "redacted_name",
]
