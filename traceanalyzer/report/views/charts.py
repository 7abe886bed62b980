"""The roofline as inline SVG: the roofs of the device, the phases and their kernels as points. `svg` draws it.

What could be wrong: labels are placed by the font metrics of vl-convert, not of the reader's browser, so a label may
sit a little off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows, strings
from traceanalyzer.report.document import Device, Report
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.text_safety import shorten, visible
from traceanalyzer.report.views.kernel_names import label
from traceanalyzer.report.views.kernel_table import REST
from traceanalyzer.report.views.pieces import device_name
from traceanalyzer.report.views.svg import CONFIG, svg_of

MAX_POINTS = 300
_WIDTH, _HEIGHT = 1000, 420
_NAME = 80
_LEAST = 0.001  # of the kernels' time, and
_LOWEST = 1e-6  # of the highest roof: what is below would only stretch the axes
_FROM = 0.01  # the slope is drawn at least from a hundredth of the ridge on
_SHAPES = {
    "prefill": "square", "decode": "circle", "mixed": "diamond", "draft": "triangle-up", "encoder": "triangle-down",
    "warmup": "triangle-left", "capture": "triangle-right", "other": "cross",
}  # fmt: skip


KEY_PATHS = {
    "prefill": "M-5-5h10v10h-10z", "decode": "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0-12 0z", "mixed": "M0-7l6 7l-6 7l-6-7z",
    "draft": "M0-6l6.5 11h-13z", "encoder": "M0 6l6.5-11h-13z", "warmup": "M-6 0l11-6.5v13z",
    "capture": "M6 0l-11-6.5v13z", "other": "M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
}  # fmt: skip
"""The shape of each phase as an SVG path around the origin, for the key beside the chart."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The chart, or why there is none. `svg` is trusted mark-up made here; `omitted` says what is not drawn."""

    svg: str
    reason: str
    omitted: str
    phases: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Point:
    phase: str
    name: str
    intensity: float
    tflops: float
    time_us: float


@dataclass(frozen=True, slots=True)
class _Roof:
    """One roof: flat at `tflops` from the ridge on, rising with the bandwidth before it."""

    label: str
    tflops: float
    gbs: float
    reached: bool

    def at(self, intensity: float) -> float:
        """The highest rate, in TFLOP/s, at an arithmetic intensity (Williams, Waterman and Patterson, 2009)."""
        return min(self.tflops, intensity * self.gbs / 1e3)

    @property
    def ridge(self) -> float:
        """FLOP per byte at which the bandwidth roof meets the compute roof."""
        return self.tflops * 1e3 / self.gbs


def roofline(report: Report) -> Roofline:
    """The roofline of the slowest device: roofs of the data types that ran, phases large, kernels small."""
    device = rows.slowest_device(report)
    phases = _phase_points(report, device)
    kernels = _kernel_points(report, device)
    roofs = _roofs(report, device)
    if not roofs or device is None:
        return Roofline("", text("roofline.no_peaks"), "", ())
    if not phases and not kernels:
        return Roofline("", text("roofline.no_work"), "", ())
    least = _LEAST * sum(point.time_us for point in kernels)
    lowest = _LOWEST * max(roof.tflops for roof in roofs)
    shown = [point for point in kernels[:MAX_POINTS] if point.time_us >= least and point.tflops >= lowest]
    omitted = ""
    if len(shown) < len(kernels):
        omitted = text("roofline.omitted", shown=fmt.count(len(shown)), total=fmt.count(len(kernels)))
    present = [name for name in rows.PHASES if any(point.phase == name for point in [*phases, *shown])]
    description = text("roofline.alt", device=visible(device_name(device)), points="; ".join(map(_said, phases)))
    svg = svg_of(_chart(roofs, phases, shown), description)
    return Roofline(svg, "", omitted, tuple((name, strings.phase_label(name)) for name in present))


def _phase_points(report: Report, device: Device | None) -> list[_Point]:
    return [
        _Point(
            row.phase, strings.phase_label(row.phase), row.arithmetic_intensity, row.achieved_tflops, row.duration_us
        )
        for row in rows.phases_of(report, device)
        if row.arithmetic_intensity and row.achieved_tflops
    ]


def _kernel_points(report: Report, device: Device | None) -> list[_Point]:
    """Kernels that have a place on a logarithmic chart, the longest first."""
    points = [
        _Point(
            row.phase,
            shorten(visible(label(row.name)), _NAME),
            row.arithmetic_intensity,
            row.achieved_tflops,
            row.total_us,
        )
        for row in rows.kernels_of(report, device)
        if row.name != REST and row.arithmetic_intensity and row.achieved_tflops
    ]
    return sorted(points, key=lambda point: (-point.time_us, point.phase, point.name))


def _roofs(report: Report, device: Device | None) -> list[_Roof]:
    """The sheet's roof of each data type that ran (of the highest one where none is known), then what is reached."""
    if device is None or not device.bandwidth_gbs or not device.peaks_tflops:
        return []
    ran = {row.dtype for row in report.kernels if row.dtype and row.arithmetic_intensity}
    dtypes = sorted(ran & set(device.peaks_tflops)) or ["bf16" if "bf16" in device.peaks_tflops else _fastest(device)]
    by_height: dict[float, list[str]] = {}
    for dtype in dtypes:
        by_height.setdefault(device.peaks_tflops[dtype], []).append(visible(dtype))
    roofs = [
        _Roof(
            text("roofline.peak", dtype="/".join(names), rate=fmt.flop_rate(height)),
            height,
            device.bandwidth_gbs,
            False,
        )
        for height, names in sorted(by_height.items(), reverse=True)
    ]
    top = max(dtypes, key=lambda dtype: device.peaks_tflops[dtype])
    reached = device.achievable_tflops.get(top)
    if reached and device.achievable_gbs:
        roofs.append(_Roof("", reached, device.achievable_gbs, True))
    return roofs


def _fastest(device: Device) -> str:
    return max(sorted(device.peaks_tflops), key=lambda dtype: device.peaks_tflops[dtype])


def _said(point: _Point) -> str:
    return text("roofline.point", name=point.name, intensity=fmt.intensity(point.intensity),
                rate=fmt.flop_rate(point.tflops))  # fmt: skip


def _chart(roofs: list[_Roof], phases: list[_Point], kernels: list[_Point]) -> dict[str, object]:
    """The Vega-Lite specification: roofs first, so that they lie below the points, and the phases' names last."""
    points = [*phases, *kernels]
    ridges = [roof.ridge for roof in roofs]
    x = _decades([point.intensity for point in points] + [_FROM * min(ridges), 4 * max(ridges)])
    lowest = min(roof.at(_FROM * roof.ridge) for roof in roofs)
    y = _decades([point.tflops for point in points] + [lowest, *(roof.tflops for roof in roofs)], top=2.0)
    names = _labels(map(_record, phases), align="left", dx=13, dy=-9, fontSize=14, fontWeight=600, color="var(--ink)")
    layers = [_line(roof, x, y) for roof in roofs]
    layers += [*_roof_labels(roofs, x, y), _points(kernels, large=False), _points(phases, large=True), names]
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "background": "transparent",
        "config": CONFIG,
        "encoding": {"x": _axis("x", x), "y": _axis("y", y)},
        "layer": layers,
    }


def _axis(name: str, domain: list[float]) -> dict[str, object]:
    """The encoding of "x" or "y": logarithmic, with a grid line per power of ten."""
    return {
        "field": name,
        "type": "quantitative",
        "title": text(f"roofline.{name}"),
        "scale": {"type": "log", "domain": domain, "nice": False},
        "axis": {"values": _powers(domain), "format": "~g", "grid": True},
    }


def _line(roof: _Roof, x: list[float], y: list[float]) -> dict[str, object]:
    """A roof as a line that bends at its ridge, from where it enters the chart on."""
    start = max(x[0], y[0] * 1e3 / roof.gbs)
    dash = [5, 4] if roof.reached else [1, 0]
    mark = {"type": "line", "color": "var(--ink-soft)", "strokeWidth": 1.6, "strokeDash": dash, "aria": False}
    return {"data": {"values": [{"x": at, "y": roof.at(at)} for at in (start, roof.ridge, x[1])]}, "mark": mark}


def _roof_labels(roofs: list[_Roof], x: list[float], y: list[float]) -> list[dict[str, object]]:
    """The name of each compute roof above its right end, and the bandwidth along the slope."""
    flat = [{"x": x[1], "y": roof.tflops, "label": roof.label} for roof in roofs if roof.label]
    sheet = roofs[0]
    left = max(x[0], y[0] * 1e3 / sheet.gbs)
    at = math.sqrt(left * sheet.ridge)
    width, height = math.log10(x[1] / x[0]), math.log10(y[1] / y[0])
    angle = -math.degrees(math.atan2(_HEIGHT / height, _WIDTH / width)) % 360
    slope = [{"x": at, "y": at * sheet.gbs / 1e3, "label": text("roofline.bandwidth", rate=fmt.byte_rate(sheet.gbs))}]
    return [
        _labels(flat, align="right", dy=-8, fontSize=13, color="var(--ink-soft)"),
        _labels(slope, align="center", dy=-10, angle=angle, fontSize=13, color="var(--ink-soft)"),
    ]


def _labels(records: Iterable[Mapping[str, object]], **mark: object) -> dict[str, object]:
    return {
        "data": {"values": list(records)},
        "mark": {"type": "text", "aria": False, **mark},
        "encoding": {"text": {"field": "label", "type": "nominal"}},
    }


def _points(points: list[_Point], large: bool) -> dict[str, object]:
    """Points in the colour and shape of their phase: phases all of one size, kernels by their time."""
    longest = max((point.time_us for point in points), default=1.0) or 1.0
    values = [_record(point) | {"area": 260.0 if large else 14 + 130 * point.time_us / longest} for point in points]
    present = [name for name in rows.PHASES if any(point.phase == name for point in points)] or ["other"]
    mark = {
        "type": "point", "filled": True, "opacity": 1.0 if large else 0.55, "stroke": "var(--surface)",
        "strokeWidth": 2 if large else 0.6,
    }  # fmt: skip
    return {
        "data": {"values": values},
        "mark": mark,
        "encoding": {
            "size": {"field": "area", "type": "quantitative", "scale": None, "legend": None},
            "color": _by_phase(present, [f"var(--phase-{name})" for name in present]),
            "shape": _by_phase(present, [_SHAPES[name] for name in present]),
            "description": {"field": "said", "type": "nominal"},
        },
    }


def _by_phase(present: list[str], look: list[str]) -> dict[str, object]:
    return {"field": "phase", "type": "nominal", "scale": {"domain": present, "range": look}, "legend": None}


def _record(point: _Point) -> dict[str, object]:
    return {"x": point.intensity, "y": point.tflops, "phase": point.phase, "label": point.name, "said": _said(point)}


def _decades(values: Iterable[float], top: float = 1.0) -> list[float]:
    """A range of whole and half decades around the values."""
    finite = [value for value in values if value > 0 and math.isfinite(value)]
    low, high = math.log10(min(finite)), math.log10(max(finite) * top)
    return [10 ** (math.floor(2 * (low - 0.1)) / 2), 10 ** (math.ceil(2 * high) / 2)]


def _powers(domain: list[float]) -> list[float]:
    first, last = math.ceil(math.log10(domain[0]) - 1e-9), math.floor(math.log10(domain[1]) + 1e-9)
    return [10.0**power for power in range(first, last + 1)]
