"""What was taken out of the trace before it was shared, in a sentence.

What could be wrong: it is what the file says of itself, and nobody vouches for it.
"""

from __future__ import annotations

from traceanalyzer.report import format as fmt
from traceanalyzer.report.document import Report
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.strings.redaction import REDACTED


def redaction_line(report: Report) -> str:
    """The sentence; empty for files that say nothing of redaction."""
    done = report.redaction
    if done is None:
        return ""
    if done.level == "none":
        return text("redaction.none")
    parts = [
        f"{fmt.count(done.counts[kind])} {one if done.counts[kind] == 1 else several}"
        for kind, (one, several) in REDACTED.items()
        if done.counts.get(kind)
    ]
    key = f"redaction.{done.level}" + ("_some" if done.files < len(report.traces) else "")
    counts = ", ".join(parts) or text("redaction.nothing")
    return text(key, counts=counts, files=done.files, total=len(report.traces))
