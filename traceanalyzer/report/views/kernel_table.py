"""The table of kernels by wasted time: what each did, how far from the sheet, and what kept it there.

The compute share is against the peak of the units that ran the kernel, tensor cores or vector units, for its data type.
What could be wrong: a peak that the user supplied for a GPU's vector units is not among its vector peaks.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows, strings
from traceanalyzer.report.document import Device, Kernel, Report
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.kernel_names import SHOWN, labels
from traceanalyzer.report.views.pieces import Figure, share_figure

REST = "(rest)"
FOLDED_FROM = 20
"""Rows that are shown at once; the rest is folded where it is more than a few."""

_SHOWN = 100
_WORTH_FOLDING = 5


@dataclass(frozen=True, slots=True)
class SortKeys:
    """What the printed figures of a row are sorted by; None is not known."""

    wasted: float | None
    total: float
    count: float
    compute: float | None
    bandwidth: float | None
    work: float | None


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel, printed."""

    number: int
    rest: bool
    folded: bool
    keys: SortKeys
    label: str
    name: str
    kind: str
    phase: str
    phase_label: str
    count: str
    total: str
    share: str
    wasted: str
    flops: str
    moved: str
    intensity: str
    compute: Figure
    compute_rate: str
    bandwidth: Figure
    bandwidth_rate: str
    bound: str
    source: str


@dataclass(frozen=True, slots=True)
class KernelView:
    """The rows shown, and how much of the kernel time they cover."""

    rows: tuple[KernelRow, ...]
    caption: str
    show_all: str


def kernel_view(report: Report, limit: int = _SHOWN) -> KernelView | None:
    """The kernels of the slowest device by wasted time, or None when there is none.

    Rows of which the waste is not known come after the others, longest first; the "(rest)" rows come last.
    """
    device = rows.slowest_device(report)
    kernels = rows.kernels_of(report, device)
    if not kernels:
        return None
    total = sum(row.total_us for row in kernels)
    ordered = sorted(kernels, key=_worst_first)
    shown = [row for row in ordered if row.name != REST][:limit]
    covered = sum(row.total_us for row in shown) / total if total else None
    rest = [row for row in ordered if row.name == REST]
    caption = text("kernels.caption", shown=fmt.count(len(shown)), total=fmt.count(len(kernels) - len(rest)),
                   share=fmt.percent(covered))  # fmt: skip
    every = [*shown, *rest]
    fold = FOLDED_FROM if len(every) > FOLDED_FROM + _WORTH_FOLDING else len(every)
    called = labels([row.name for row in every], SHOWN)
    printed = [
        _row(number, row, name, device, total, number > fold)
        for number, (row, name) in enumerate(zip(every, called, strict=True), start=1)
    ]
    show_all = text("kernels.show_all", count=len(every)) if fold < len(every) else ""
    return KernelView(tuple(printed), caption, show_all)


def _worst_first(row: Kernel) -> tuple[bool, float, float, str, str]:
    """By wasted time; a kernel whose work is not known may have wasted all of its time, and is ranked so."""
    wasted = row.total_us if row.wasted_us is None else row.wasted_us
    return (row.name == REST, -wasted, -row.total_us, row.phase, row.name)


def _peak(row: Kernel, device: Device | None) -> float | None:
    """The peak of the units that ran the kernel, in TFLOP/s; None where they, their peak or the dtype are not known."""
    if device is None or row.dtype is None:
        return None
    if device.has_tensor_cores is False or row.tensor_core:
        return device.peaks_tflops.get(row.dtype)
    return device.vector_peaks_tflops.get(row.dtype) if row.tensor_core is False else None


def _row(number: int, row: Kernel, called: str, device: Device | None, total: float, folded: bool) -> KernelRow:
    peak = _peak(row, device)
    compute = row.achieved_tflops / peak if peak and row.achieved_tflops is not None else None
    bandwidth_peak = device.bandwidth_gbs if device else None
    bandwidth = row.achieved_gbs / bandwidth_peak if bandwidth_peak and row.achieved_gbs is not None else None
    words = [row.category, row.role if row.role != row.category else None, row.dtype]
    if row.tensor_core:
        words.append(text("kernels.tensor"))
    return KernelRow(
        number=number,
        rest=row.name == REST,
        folded=folded,
        keys=SortKeys(row.wasted_us, row.total_us, row.count, compute, bandwidth, row.flops),
        label=text("kernels.rest") if row.name == REST else called,
        name=text("kernels.rest") if row.name == REST else row.name,
        kind=", ".join(word for word in words if word) if row.name != REST else "",
        phase=row.phase,
        phase_label=strings.phase_label(row.phase),
        count=fmt.count(row.count),
        total=fmt.duration(row.total_us),
        share=fmt.percent(row.total_us / total if total else None),
        wasted=fmt.duration(row.wasted_us),
        flops=fmt.work(row.flops),
        moved=fmt.size(row.bytes),
        intensity=fmt.intensity(row.arithmetic_intensity) if row.arithmetic_intensity else "",
        compute=share_figure(compute),
        compute_rate=fmt.flop_rate(row.achieved_tflops) if row.achieved_tflops else "",
        bandwidth=share_figure(bandwidth),
        bandwidth_rate=fmt.byte_rate(row.achieved_gbs) if row.achieved_gbs else "",
        bound=strings.bound_label(row.bound),
        source=strings.source_label(row.work_source),
    )
