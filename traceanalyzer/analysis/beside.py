"""What was recorded beside a trace, and what it means for the figures: the GPU's own counters, the log of all steps.

A held-down clock makes every kernel slower than the sheet allows for, and another process takes time that no trace
shows. Where the counters say that neither happened, both are ruled out as reasons; where they say nothing, nothing is
said. A window is typical while its decode steps take about as long as those that ran without the profiler.

What could be wrong: counters are samples, a tenth of a second apart by default, and means over the window: what lasts
a few milliseconds is not in them. A power limit holds the clock down without being a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.collector import number, section, word
from traceanalyzer.trace.tables import Note, Trace

FULL_CLOCK = 0.9
"""Share of the highest SM clock from which on the clock is no reason."""
HELD_DOWN = 0.05
"""Share of the window in which something held the clock down, from which on that is worth saying."""
UNUSUAL = 0.15
"""Relative difference between a window's decode step and that of the unprofiled ones, above which it is not typical."""
LEAST_PROFILED, LEAST_UNPROFILED = 8, 16
"""Of so many steps a median is compared with another."""


@dataclass(frozen=True)
class Clock:
    """The SM clock over the window: its mean and its highest, in MHz, and for what share of time it was held down.

    `held_share` is None where the driver gives no reasons; `reasons` are the driver's, most frequent first.
    """

    mhz: float | None
    highest_mhz: float | None
    held_share: float | None
    reasons: tuple[str, ...]

    @property
    def held_down(self) -> bool | None:
        """Whether the clock was held down for a noticeable time; None unknown."""
        if self.held_share is not None:
            return self.held_share > HELD_DOWN
        return bool(self.reasons) if self.reasons else None

    @property
    def is_full(self) -> bool:
        """Whether the clock was about as high as it goes, and nothing held it down."""
        known = self.held_down is False and self.mhz is not None and self.highest_mhz
        return bool(known and (self.mhz or 0.0) >= FULL_CLOCK * (self.highest_mhz or 0.0))


def clock(trace: Trace) -> Clock:
    """The GPU's clock while the trace was recorded."""
    gpu = section(trace.metadata.collector, "gpu")
    reasons = gpu.get("throttle_reasons")
    listed = tuple(reason for reason in reasons if isinstance(reason, str)) if isinstance(reasons, list) else ()
    share = number(gpu, "throttle_share")
    if share is None and isinstance(reasons, list) and not listed:
        share = 0.0
    return Clock(number(gpu, "sm_mhz"), number(gpu, "sm_mhz_max"), share, listed)


def other_processes(trace: Trace) -> int | None:
    """The most processes besides the recorded command that used the GPU at one time; None unknown."""
    count = number(section(trace.metadata.collector, "gpu"), "other_processes")
    return None if count is None else int(count)


def notes(lines: Sequence[Timeline]) -> list[Note]:
    """What the counters and the log say against the figures, once for all devices."""
    found: dict[str, Note] = {}
    for trace in {id(line.trace): line.trace for line in lines}.values():
        held = clock(trace)
        if held.held_down:
            reasons = ", ".join(reason.replace("_", " ") for reason in held.reasons[:3]) or "reason not known"
            share = "" if held.held_share is None else f"{100 * held.held_share:.0f} %, "
            found.setdefault("gpu_throttled", Note("gpu_throttled", "warning", 1, share + reasons))
        if others := other_processes(trace):
            found.setdefault("gpu_shared", Note("gpu_shared", "warning", others))
        unusual = _unusual(trace)
        if unusual is not None:
            found.setdefault("window_not_typical", Note("window_not_typical", "warning", 1, f"{100 * unusual:+.0f} %"))
    return list(found.values())


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """The median step of one phase under the profiler and without it, in microseconds; None where too few were seen."""

    phase: str | None
    us: float | None
    unprofiled_us: float | None


def profiled_step(trace: Trace) -> ProfiledStep:
    """What recording cost the run, as the recorder measured it.

    A median of a few steps says nothing: the first ones after a start are slow, whoever watches.
    """
    cost = section(trace.metadata.collector, "overhead")

    def median(key: str, count: str, least: int) -> float | None:
        steps = number(cost, count)
        return None if steps is not None and steps < least else number(cost, key)

    return ProfiledStep(
        phase=word(cost, "phase"),
        us=median("step_us", "profiled_steps", LEAST_PROFILED),
        unprofiled_us=median("unprofiled_step_us", "unprofiled_steps", LEAST_UNPROFILED),
    )


def _unusual(trace: Trace) -> float | None:
    """By how much the window's decode step differs from the usual one, where that is much and nothing speaks against.

    Usual is the median without the profiler and, for decode, the median of all steps in the log: a step that agrees
    with either is not unusual.
    """
    step = profiled_step(trace)
    logged = number(section(trace.metadata.collector, "steplog"), "decode_period_p50_us")
    usual = [step.unprofiled_us, logged if step.phase == "decode" else None]
    differences = [step.us / us - 1.0 for us in usual if us and step.us]
    difference = min(differences, key=abs, default=0.0)
    return difference if abs(difference) > UNUSUAL else None
