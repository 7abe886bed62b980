"""What can be wrong with a recording: every code a reader may note, with its severity, in one place.

The sentences for these codes stand in `report/strings.py`. What could be wrong: a code is renamed although reports of
older versions carry it. Codes are therefore only ever added.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from traceanalyzer.trace.tables import Note, Severity

TRUNCATED_COMPRESSION = "truncated_compression"
DAMAGED_COMPRESSION = "damaged_compression"
TRUNCATED_JSON = "truncated_json"
DAMAGED_EVENTS = "damaged_events"
CONTROL_CHARACTERS = "control_characters"
INVALID_UTF8 = "invalid_utf8"
NON_FINITE_NUMBERS = "non_finite_numbers"
INVALID_ESCAPES = "invalid_escapes"
ODD_FIELDS = "odd_fields"
DAMAGED_METADATA = "damaged_metadata"
EVENTS_WITHOUT_TIME = "events_without_time"
NEGATIVE_DURATION = "negative_duration"
ABSURD_DURATION = "absurd_duration"
OUT_OF_RANGE = "out_of_range"
DUPLICATE_KERNELS = "duplicate_kernels"
OVERLAPPING_KERNELS = "overlapping_kernels"
KERNELS_WITHOUT_LAUNCH = "kernels_without_launch"
KERNELS_WITHOUT_CORRELATION = "kernels_without_correlation"
BEGIN_END_EVENTS = "begin_end_events"
WHOLE_MICROSECONDS = "whole_microseconds"
WINDOWS_OVERLAP = "windows_overlap"
WINDOWS_LEFT_OUT = "windows_left_out"
WINDOWS_WITHOUT_RANKS = "windows_without_ranks"
EMPTY_FILES = "empty_files_left_out"
RECORDING_UNREADABLE = "recording_unreadable"
RECORDING_FILES_MISSING = "recording_files_missing"
RECORDING_FILES_UNREADABLE = "recording_files_unreadable"
RECORDING_FILES_CHANGED = "recording_files_changed"
RECORDING_UNFINISHED = "recording_unfinished"
RECORDING_DROPPED = "recording_dropped"
RECORDING_FAILURES = "recording_failures"
RECORDING_STEPS_LOST = "recording_steps_lost"
RECORDING_STEPLOG_SHORT = "recording_steplog_short"
FRAMES_LEFT_OUT = "frames_left_out"
AFTER_WINDOW = "after_window"
OTHER_PROCESSES = "other_processes_left_out"

SEVERITY: dict[str, Severity] = {
    TRUNCATED_COMPRESSION: "error",
    DAMAGED_COMPRESSION: "error",
    TRUNCATED_JSON: "error",
    DAMAGED_EVENTS: "warning",
    CONTROL_CHARACTERS: "warning",
    INVALID_UTF8: "warning",
    NON_FINITE_NUMBERS: "warning",
    INVALID_ESCAPES: "warning",
    ODD_FIELDS: "warning",
    DAMAGED_METADATA: "warning",
    EVENTS_WITHOUT_TIME: "warning",
    NEGATIVE_DURATION: "warning",
    ABSURD_DURATION: "warning",
    OUT_OF_RANGE: "warning",
    DUPLICATE_KERNELS: "warning",
    OVERLAPPING_KERNELS: "info",
    KERNELS_WITHOUT_LAUNCH: "info",
    KERNELS_WITHOUT_CORRELATION: "info",
    BEGIN_END_EVENTS: "info",
    WHOLE_MICROSECONDS: "info",
    WINDOWS_OVERLAP: "warning",
    WINDOWS_LEFT_OUT: "info",
    WINDOWS_WITHOUT_RANKS: "warning",
    EMPTY_FILES: "warning",
    RECORDING_UNREADABLE: "warning",
    RECORDING_FILES_MISSING: "warning",
    RECORDING_FILES_UNREADABLE: "warning",
    RECORDING_FILES_CHANGED: "warning",
    RECORDING_UNFINISHED: "warning",
    RECORDING_DROPPED: "warning",
    RECORDING_FAILURES: "info",
    RECORDING_STEPS_LOST: "warning",
    RECORDING_STEPLOG_SHORT: "info",
    OTHER_PROCESSES: "warning",
    FRAMES_LEFT_OUT: "info",
    AFTER_WINDOW: "info",
}
"""Every code a reader may note, with its severity."""

_TOLD = re.compile(r"([a-z0-9_]{1,40}) ([0-9]{1,15})(?: ([A-Za-z_]{1,40}))?", re.ASCII)


class NoteBook:
    """Collects notes while reading: counts add up per code, the first detail is kept."""

    def __init__(self) -> None:
        """Start empty."""
        self._counts: Counter[str] = Counter()
        self._details: dict[str, str] = {}

    def add(self, code: str, count: int = 1, detail: str = "") -> None:
        """Note `count` more of `code`; a count of 0 notes nothing."""
        if count <= 0:
            return
        self._counts[code] += count
        if detail:
            self._details.setdefault(code, detail)

    def notes(self) -> tuple[Note, ...]:
        """All notes, in the order in which the codes are listed in this module."""
        return tuple(
            Note(code, severity, self._counts[code], self._details.get(code, ""))
            for code, severity in SEVERITY.items()
            if self._counts[code]
        )

    def told(self) -> list[str]:
        """All notes as lines for `retell`: of a file that is rewritten, its damage is to be known afterwards too."""
        return [f"{code} {count} {self._details.get(code, '')}".rstrip() for code, count in self._counts.items()]

    def retell(self, lines: Iterable[object]) -> None:
        """Note what was noted when the file was rewritten; lines of any other form are left out."""
        for line in lines:
            found = _TOLD.fullmatch(line) if isinstance(line, str) else None
            if found and found[1] in SEVERITY:
                self.add(found[1], int(found[2]), found[3] or "")
