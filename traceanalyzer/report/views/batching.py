"""How far batching carries: predicted tokens per second by sequences in the batch, as a sentence, a chart and a table.

What was recorded is the decode phase's own row, which may lie between two points: a mean batch is no whole number. What
could be wrong: the points are predictions from the recorded steps, as good as the model behind them, which the
confidence speaks of; the phase's rate spans all of its time, the model's step only complete ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows
from traceanalyzer.report.document import Batching, BatchPoint, Report
from traceanalyzer.report.strings.labels import cap_reason
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.svg import CONFIG, svg_of

_WIDTH, _HEIGHT = 1000, 300
_STEPS = (1.0, 2.0, 5.0)  # ticks within a power of ten


@dataclass(frozen=True, slots=True)
class Recorded:
    """The decode phase as measured: sequences in its mean step, and tokens per second."""

    sequences: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class BatchingView:
    """Sentences, the chart (trusted mark-up made here; empty for a single point), and its points printed.

    `marked` and `ended`: whether the chart marks the recorded batch, and where it can grow no further.
    """

    lead: str
    notes: tuple[str, ...]
    svg: str
    marked: bool
    ended: bool
    points: tuple[tuple[str, str, str], ...]
    assumptions: tuple[str, ...]


def batching_view(report: Report) -> BatchingView | None:
    """How far batching carries, or None where no point is known."""
    batching = report.batching
    if batching is None or not batching.points:
        return None
    points = sorted(batching.points, key=lambda point: point.sequences)
    now = _recorded(report)
    printed = tuple(
        (fmt.count(point.sequences), fmt.duration(point.step_us), fmt.significant(point.tokens_per_s))
        for point in points
    )
    svg = svg_of(_chart(points, now, batching.cap), _said(points)) if len(points) > 1 else ""
    return BatchingView(
        lead=_lead(batching, points, now),
        notes=tuple(_notes(batching, now)),
        svg=svg,
        marked=now is not None,
        ended=batching.cap == points[-1].sequences,
        points=printed,
        assumptions=tuple(batching.assumptions),
    )


def _recorded(report: Report) -> Recorded | None:
    """The batch and the rate that the decode phase was measured at, where both are known."""
    phases = rows.phases_of(report, rows.slowest_device(report))
    decode = next((row for row in phases if row.phase == "decode"), None)
    if decode is None or not decode.sequences_mean or not decode.tokens_per_s:
        return None
    return Recorded(decode.sequences_mean, decode.tokens_per_s)


def _lead(batching: Batching, points: list[BatchPoint], now: Recorded | None) -> str:
    best = max(points, key=lambda point: point.tokens_per_s)
    reason = cap_reason(batching.cap_reason) if batching.cap == best.sequences else ""
    cap = text("batching.cap", reason=reason) if reason else ""
    predicted = text("batching.lead", rate=_rate(best), sequences=_sequences(best), cap=cap)
    return predicted if now is None else f"{_now(now)} {predicted}"


def _now(now: Recorded) -> str:
    return text("batching.now", rate=_rate(now), sequences=_sequences(now))


def _notes(batching: Batching, now: Recorded | None) -> list[str]:
    notes = []
    single = now is not None and now.sequences == 1  # worth itself
    if batching.batching_efficiency is not None and batching.effective_batch is not None and not single:
        share, batch = fmt.percent(batching.batching_efficiency), fmt.significant(batching.effective_batch, 2)
        notes.append(text("batching.efficiency", share=share, batch=batch))
    if batching.streams is not None and batching.streams > 1:
        notes.append(text("batching.streams", count=fmt.count(batching.streams)))
    notes.append(text("batching.confidence", share=fmt.percent(batching.confidence)))
    return notes


def _rate(point: BatchPoint | Recorded) -> str:
    return fmt.rate(point.tokens_per_s, "tokens")


def _sequences(point: BatchPoint | Recorded) -> str:
    return text("batching.sequences_of", count=fmt.count(point.sequences), s="" if point.sequences == 1 else "s")


def _said(points: list[BatchPoint]) -> str:
    return text("batching.alt", points="; ".join(map(_point, points)))


def _point(point: BatchPoint) -> str:
    return text("batching.point", sequences=_sequences(point), step=fmt.duration(point.step_us), rate=_rate(point))


def _chart(points: list[BatchPoint], now: Recorded | None, cap: int | None) -> dict[str, object]:
    """Both axes logarithmic, so that batching for free is the straight line it is drawn beside."""
    first, last = points[0], points[-1]
    drawn: list[BatchPoint | Recorded] = [*points, *([] if now is None else [now])]
    rates = [point.tokens_per_s for point in drawn]
    batches = [point.sequences for point in drawn]
    x = [min(batches) / 1.15, max(batches) * 1.15]
    y = [0.7 * min(rates), 1.6 * max(rates)]
    each = first.tokens_per_s / first.sequences
    end = min(x[1], y[1] / each)
    values = [{"x": point.sequences, "y": point.tokens_per_s, "said": _point(point)} for point in points]
    free = [{"x": at, "y": each * at} for at in (first.sequences, end)]
    soft = {"type": "line", "color": "var(--ink-soft)", "strokeWidth": 1.4, "strokeDash": [5, 4], "aria": False}
    said = {"description": {"field": "said", "type": "nominal"}}
    layers: list[dict[str, object]] = [
        {"data": {"values": free}, "mark": soft},
        {"data": {"values": values},
         "mark": {"type": "line", "color": "var(--phase-decode)", "strokeWidth": 2.2, "aria": False}},
        {"data": {"values": values}, "encoding": said,
         "mark": {"type": "point", "filled": True, "color": "var(--phase-decode)", "size": 36, "opacity": 1.0}},
    ]  # fmt: skip
    if cap is not None and cap == last.sequences:
        layers.insert(0, {"data": {"values": [{"x": cap}]}, "encoding": {"y": {"value": 0}, "y2": {"value": _HEIGHT}},
                          "mark": {**soft, "type": "rule"}})  # fmt: skip
    if now is not None:
        here = {"x": now.sequences, "y": now.tokens_per_s}
        ring = {"type": "point", "color": "var(--ink)", "size": 190, "strokeWidth": 2, "aria": False}
        layers.append({"data": {"values": [here]}, "mark": ring})
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "background": "transparent",
        "config": CONFIG,
        "encoding": {
            "x": _axis("x", x, [float(point.sequences) for point in points if _is_power_of_two(point.sequences)]),
            "y": _axis("y", y, _ticks(y)),
        },
        "layer": layers,
    }


def _axis(name: str, domain: list[float], ticks: list[float]) -> dict[str, object]:
    return {
        "field": name,
        "type": "quantitative",
        "title": text(f"batching.{name}"),
        "scale": {"type": "log", "domain": domain, "nice": False},
        "axis": {"values": ticks, "format": ",~g", "grid": True},
    }


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _ticks(domain: list[float]) -> list[float]:
    """One, two and five times the powers of ten that lie within a range."""
    powers = [10.0**power for power in range(-3, 10)]
    return [step * power for power in powers for step in _STEPS if domain[0] <= step * power <= domain[1]]
