"""What is said when a run is over: what was recorded and the next command, or why nothing was.

What could be wrong: why nothing came is a guess from what the processes said; a process that was not seen said nothing.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Iterator

from .say import counted

if TYPE_CHECKING:
    from .recording import Recording

_FEW = 8
"""So few steps of a window say little."""


def lines(recording: Recording, left: int) -> Iterator[str]:
    """The lines, without a prefix. `left`: processes of the command that run on."""
    if left:
        yield f"{counted(left, 'process', 'processes')} of the command with torch run on, unrecorded"
    yield from _why_nothing(recording)
    manifest = recording.spool.manifest()
    for what, counts in (
        ("triggers without a window", recording.windows.dropped), ("not kept", manifest["dropped"]),
        ("lost", manifest["lost"]),
    ):  # fmt: skip
        if counts:
            yield f"{what}: " + ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    files = [file for window in manifest["windows"] for file in window["files"]]
    if files:
        steps = sum(file.get("steps") or 0 for file in files)
        size = sum(file["bytes"] for file in files)
        yield (
            f"{counted(steps, 'step')} in {counted(len(files), 'file')}, {size / 1e6:.1f} MB; "
            f"next: traceanalyzer report {shlex.quote(_shown(recording))}"
        )
        most = max(file.get("steps") or 0 for file in files)
        if most < _FEW and all(file.get("closed_by") == "time" for file in files):
            yield f"no window held more than {counted(most, 'whole step')}: a longer one holds more (--window 20s)"


def _why_nothing(recording: Recording) -> Iterator[str]:
    if not recording.seen:
        yield (
            "no process with torch reported: none imported it, or the environment did not reach it (python -I, sudo, "
            "a daemon that starts it); see traceanalyzer collect --check"
        )
    elif not any(recording.steps.values()) and recording.ended_by is None:
        yield (
            f"torch was seen in {counted(len(recording.seen), 'process', 'processes')} but no step of a model that is "
            "known: name what one step calls by --step MODULE:CLASS.METHOD"
        )


def _shown(recording: Recording) -> str:
    """The recording's folder as the user would name it."""
    return str(Path(recording.options.output) / recording.spool.run_id)
