"""What a reader must know about the data: one sentence per code of a `Note`.

A sentence may use {count} and {detail}; {s} is the plural s for the count. The message must say what it means for the
figures, not only what happened.
"""

from __future__ import annotations

from collections.abc import Mapping

from traceanalyzer.report import format as fmt

QUALITY: Mapping[str, str] = {
    # the file
    "truncated": "The file ends in the middle of the data; what came before the cut was analysed.",
    "repaired_encoding": "{count} byte{s} that are no valid text were replaced.",
}


def quality_message(code: str, count: int = 1, detail: str = "") -> str:
    """The sentence of a quality note.

    Args:
        code: the note's code, as `Note.code`.
        count: how many events (or whatever the sentence counts) it concerns.
        detail: the specific the sentence quotes, shown as it is.

    Returns:
        The sentence; for a code that is not in the catalogue the code itself with its detail and count.
    """
    template = QUALITY.get(code)
    if template is None:
        suffix = f": {detail}" if detail else ""
        return f"{code.replace('_', ' ')}{suffix} ({fmt.count(count)})"
    return template.format(count=fmt.count(count), detail=detail, s="" if count == 1 else "s")
