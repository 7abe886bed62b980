"""What the parts of the supervisor tell each other: windows, their files, and why a trigger was not followed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RawWindow:
    """One process' share of a window, as its recorder left it under RECORDING/.raw.

    path: the trace as JSON, not compressed. Times are epoch nanoseconds, costs milliseconds; None is unknown.
    closed_by: steps | time | flush | exit | user_profiler | lost; `steps` and `time` are complete windows.
    quiet_ns: from when on no operation was taken, see `inside.quiet`: a step that ended later is cut.
    """

    path: Path
    pid: int
    recorder: str
    opened_ns: int | None = None
    closed_ns: int | None = None
    closed_by: str = "steps"
    open_ms: float | None = None
    stop_ms: float | None = None
    save_ms: float | None = None
    quiet_ns: int | None = None

    @property
    def whole_until_ns(self) -> int | None:
        """Until when its steps were recorded whole; None: unknown."""
        return self.closed_ns if self.quiet_ns is None else self.quiet_ns


@dataclass
class Window:
    """One window over all ranks.

    number: from 1, as in the control block. In mode `full` every process counts its own windows.
    reason: full | every | requests | latency | signal | http.
    stable: whether the batch size had settled before it; None where it was not waited for.
    weight_s: seconds of the run that this window stands for, from the last window's trigger to its own.
    missing: pids that hold a model and gave no file.
    labelled: False where no hooked model is known: the trace then has no labels of ours.
    failed: why a window that was accepted gave no file at all.
    lost: pid -> why it gave no file, of those that were asked for one.
    tries: how often it was begun; anew where nobody had recorded it for a reason that passes.
    """

    number: int
    reason: str
    requested_ns: int
    stable: bool | None = None
    weight_s: float | None = None
    raws: list[RawWindow] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    labelled: bool = True
    failed: Refused | None = None
    lost: dict[int, str] = field(default_factory=dict)
    tries: int = 0
    service: dict[str, Any] = field(default_factory=dict)
    """The engine's own metrics at open and close, see `service`."""


@dataclass(frozen=True)
class Refused:
    """Why a trigger led to no window: busy | min_gap | per_day | no_model | stopped | unsupported | idle | lost."""

    code: str
    message: str
