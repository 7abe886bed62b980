"""Prefill against decode: one card per phase with its two distances from the sheet, and one table of every figure."""

from __future__ import annotations

from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows, strings
from traceanalyzer.report.document import Device, Phase, Report
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.pieces import Fact, Figure, PhaseLine, bound_chip, phase_line

_CARDS = ("prefill", "decode", "mixed")


@dataclass(frozen=True, slots=True)
class Card:
    """One phase, large: what binds it, and how full its two roofs are (0 to 1, None unknown)."""

    line: PhaseLine
    chip: str
    step_label: str
    share_of_span: str
    compute: float | None
    bandwidth: float | None
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class PhaseView:
    """The cards, and the comparison: one row per figure, one cell per phase."""

    cards: tuple[Card, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Figure, ...]], ...]


def phase_view(report: Report) -> PhaseView | None:
    """The phases of the slowest device, or None when there is none."""
    device = rows.slowest_device(report)
    phases = rows.recorded_phases(report, device)
    if not phases:
        return None
    several = any(row.step_us and row.steps > 1 for row in phases)
    cards = [
        Card(
            line=phase_line(row),
            chip=bound_chip(row.bound),
            step_label=text("phases.one_step" if row.steps == 1 else "phases.step"),
            share_of_span=text("phases.share_of_span", share=fmt.percent(row.time_share)),
            compute=_full(row.compute_share),
            bandwidth=_full(row.bandwidth_share),
            facts=tuple(_card_facts(_figures(row, device, several))),
        )
        for row in phases
        if row.phase in _CARDS
    ]
    printed = [_figures(row, device, several) for row in phases]
    unknown = Figure(fmt.UNKNOWN)
    labels = [label for label in printed[0] if any(column[label] != unknown for column in printed)]
    return PhaseView(
        cards=tuple(cards),
        columns=tuple(strings.phase_label(row.phase) for row in phases),
        rows=tuple((label, tuple(column[label] for column in printed)) for label in labels),
    )


def _card_facts(printed: dict[str, Figure]) -> list[Fact]:
    """What tells the phases apart, where it is known."""
    keys = ["tokens_per_s", "intensity", "ridge", "kernels", "sequences", "context"]
    if printed[text("phases.intensity")].text == fmt.UNKNOWN:  # a ridge alone says nothing
        keys.remove("ridge")
    labels = [text(f"phases.{key}") for key in keys]
    return [Fact(label, printed[label]) for label in labels if printed[label].text != fmt.UNKNOWN]


def _prefill_time(row: Phase) -> str:
    """The part of the mixed steps' time that is the prompts', and how sure that is."""
    if row.prefill_time_share is None or row.prefill_time_confidence is None:
        return fmt.UNKNOWN
    return text(
        "phases.prefill_time_value",
        share=fmt.percent(row.prefill_time_share),
        confidence=fmt.percent(row.prefill_time_confidence),
    )


def _full(share: float | None) -> float | None:
    return None if share is None else min(max(share, 0.0), 1.0)


def _figures(row: Phase, device: Device | None, several: bool) -> dict[str, Figure]:
    """Every figure of a phase by its label; percentiles only where `several` steps of any phase give some."""
    line = phase_line(row)
    steps = row.step_us
    spread = fmt.UNKNOWN
    if steps and row.steps > 1:
        spread = f"{fmt.duration(steps.p10)} {fmt.DASH} {fmt.duration(steps.p99)}"
    known = fmt.UNKNOWN
    if row.flops_known_share is not None and row.bytes_known_share is not None:
        known = text("phases.known_value", flops=fmt.percent(row.flops_known_share),
                     bytes=fmt.percent(row.bytes_known_share))  # fmt: skip
    printed: list[tuple[str, str | Figure]] = [
        ("phases.bound", line.bound_label),
        ("phases.time", line.time),
        ("phases.time_share", line.time_share),
        ("phases.busy", fmt.duration(row.gpu_busy_us)),
        ("phases.prefill_time", _prefill_time(row)),
        ("phases.steps", line.steps),
        ("phases.step" if several else "phases.step_only", line.step_in_words),
        ("phases.step_range", spread),
        ("phases.period", fmt.duration(row.period_us_mean)),
        ("phases.tokens_per_s", line.tokens_per_s),
        ("phases.us_per_token", fmt.duration(row.us_per_output_token)),
        ("phases.prefill_tokens", fmt.count(row.prefill_tokens)),
        ("phases.decode_tokens", fmt.count(row.decode_tokens)),
        ("phases.output_tokens", fmt.count(row.output_tokens)),
        ("phases.padded_tokens", fmt.count(row.padded_tokens)),
        ("phases.sequences", fmt.count(row.sequences_mean)),
        ("phases.context", fmt.count(row.context_mean)),
        ("phases.compute", line.compute),
        ("phases.achieved_flops", fmt.flop_rate(row.achieved_tflops)),
        ("phases.bandwidth", line.bandwidth),
        ("phases.achieved_bytes", fmt.byte_rate(row.achieved_gbs)),
        ("phases.intensity", fmt.intensity(row.arithmetic_intensity)),
        ("phases.ridge", fmt.intensity(rows.ridge(device))),
        ("phases.flops", fmt.work(row.flops)),
        ("phases.bytes", fmt.size(row.bytes)),
        ("phases.kernels", fmt.count(row.kernels_per_step)),
        ("phases.launches", fmt.count(row.launches_per_step)),
        ("phases.known", known),
    ]
    return {text(key): value if isinstance(value, Figure) else Figure(value) for key, value in printed}
