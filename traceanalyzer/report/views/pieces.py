"""What several views share: figures with their marks, a phase as a line, sentences about floors and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import strings
from traceanalyzer.report.document import DecodeFloor, Device, Phase, PrefillIdeal, Report
from traceanalyzer.report.strings.page import text

LIMIT_TOLERANCE = 1.005
"""A figure at the limit may round above it; more is above what the hardware can do."""
_TICK_PARTS = 4


_TOLD = 0.001  # a lower bound below this says no more than that there is something


@dataclass(frozen=True, slots=True)
class Figure:
    """A printed figure, and whether it is above the physical limit and so has to be marked as doubtful."""

    text: str
    above_limit: bool = False

    def __str__(self) -> str:
        """The figure with its mark, for renderings without mark-up."""
        return f"{self.text} \N{WARNING SIGN}" if self.above_limit else self.text


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and what it says."""

    label: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class PhaseLine:
    """One phase in the short table."""

    phase: str
    label: str
    bound: str
    bound_label: str
    time: str
    time_share: str
    steps: str
    step: str
    step_note: str
    tokens_per_s: str
    bandwidth: Figure
    compute: Figure

    @property
    def step_in_words(self) -> str:
        """The step's time, and that it is of one step where it is."""
        return f"{self.step}, {self.step_note}" if self.step_note else self.step


def above_limit(share: float | None) -> bool:
    """Whether a share of a limit is beyond what the hardware can do, so that something must be wrong."""
    return share is not None and share > LIMIT_TOLERANCE


def share_figure(share: float | None, at_least: bool = False) -> Figure:
    """A share of a peak, marked when it is above the peak."""
    printed = fmt.percent(share)
    if at_least and share is not None:
        printed = text("meters.at_least", share=printed) if share >= _TOLD else text("meters.above_zero")
    return Figure(printed, above_limit(share))


def is_partial(known_share: float | None) -> bool:
    """Whether a figure rests on part of the work only, so that the true one may be higher."""
    return known_share is not None and known_share < 0.995


def device_name(device: Device | None) -> str:
    """The device as people call it, or "unknown"."""
    if device is None:
        return fmt.UNKNOWN
    if device.name:
        return device.name
    return text("ran.cpu") if device.kind == "cpu" else fmt.UNKNOWN


def bound_chip(bound: str) -> str:
    """What binds a phase or the run, as a label that stands alone."""
    return text(f"verdict.bound.{bound}")


def phase_line(row: Phase) -> PhaseLine:
    """One phase as a line of the short table."""
    return PhaseLine(
        phase=row.phase,
        label=strings.phase_label(row.phase),
        bound=row.bound,
        bound_label=strings.bound_label(row.bound),
        time=fmt.duration(row.duration_us),
        time_share=fmt.percent(row.time_share),
        steps=fmt.count(row.steps),
        step=fmt.duration(row.step_us.p50 if row.step_us else None),
        step_note=text("phases.one_step") if row.step_us and row.steps == 1 else "",
        tokens_per_s=fmt.UNKNOWN if row.tokens_per_s is None else fmt.significant(row.tokens_per_s),
        bandwidth=share_figure(row.bandwidth_share, at_least=is_partial(row.bytes_known_share)),
        compute=share_figure(row.compute_share, at_least=is_partial(row.flops_known_share)),
    )


def step_head(lines: Sequence[PhaseLine]) -> str:
    """The head of the steps' times: a percentile where any phase has more than one step."""
    several = any(line.step != fmt.UNKNOWN and not line.step_note for line in lines)
    return text("phases.step" if several else "phases.step_only")


def simulated(report: Report) -> str:
    """That no GPU ran this, where the run's labels or a trace's own block (itself, or its window) says so."""
    said = report.run.labels.get("simulated", "").lower() == "true"
    for block in (trace.collector or {} for trace in report.traces):
        window = block.get("window")
        said = said or block.get("simulated") is True
        said = said or (isinstance(window, dict) and window.get("simulated") is True)
    return text("simulated") if said else ""


def limits_known(device: Device | None) -> bool:
    """Whether there are limits to measure against, so that the user need not supply any."""
    return device is None or bool(device.bandwidth_gbs and device.peaks_tflops)


def prefill_lead(ideal: PrefillIdeal, steps: int) -> str:
    """The prefill against its ideal, of so many steps together, in a sentence; empty where the ideal is not known."""
    if ideal.ideal_us is None:
        return ""
    ratio = text("floor.prefill_ratio", ratio=fmt.factor(ideal.ratio))
    measured, least = fmt.duration(ideal.measured_us), fmt.duration(ideal.ideal_us)
    if steps > 1:
        return text("floor.prefills_lead", count=fmt.count(steps), measured=measured, ideal=least, ratio=ratio)
    return text("floor.prefill_lead", measured=measured, ideal=least, ratio=ratio)


def slope_lead(floor: DecodeFloor) -> str:
    """What a thousand more tokens of context cost a step, ideally and as measured; empty where neither is known."""
    ideal, measured = floor.us_per_1k_context_ideal, floor.us_per_1k_context_measured
    if ideal is None:
        return ""
    key = "floor.slope" if measured is not None else "floor.slope_only"
    return text(key, ideal=fmt.duration(ideal), measured=fmt.duration(measured))


def floor_lead(floor: DecodeFloor) -> str:
    """One decode step against its floor, in a sentence."""
    measured = fmt.duration(floor.measured_us)
    if floor.floor_us is None:
        return text("floor.lead_unknown", measured=measured)
    ratio = text("floor.ratio", ratio=fmt.factor(floor.ratio))
    return text("floor.lead", measured=measured, floor=fmt.duration(floor.floor_us), ratio=ratio)


def percent(value: float) -> str:
    """A percentage as an SVG attribute, short and without an exponent."""
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"


def ticks(us: float) -> tuple[str, ...]:
    """The marks of a time axis from zero to a time in microseconds."""
    return ("0", *(fmt.duration(us * part / _TICK_PARTS) for part in range(1, _TICK_PARTS + 1)))
