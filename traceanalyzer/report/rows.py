"""The Report as flat rows: dotted key -> number, such as `decode.step_us.p50`.

The one flattening: gates, trends and the first screen take their figures from here, so that the same figure has the
same value everywhere. Keys without a device are those of the slowest device (the longest span, the first one on a tie).
Unknown figures have no key. What could be wrong: on a run of several devices the other devices' figures are not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar, get_args

from traceanalyzer.report.document import Device, Kernel, LedgerRow, Phase, PhaseName, Report, Step

PHASES: tuple[str, ...] = get_args(PhaseName)
"""The phases in reading order."""

NOT_RECORDED = "idle_artefact"
"""The bucket of the ledger for time that is neither idle nor busy, for it was not recorded."""

_SECTIONS = ("request", "decode_floor", "prefill_ideal", "memory", "sensitivity", "cost", "profiling", "service")
_NOT_FIGURES = frozenset({"rank", "device"})
_Row = TypeVar("_Row", Phase, LedgerRow, Step, Kernel)


def slowest_device(report: Report) -> Device | None:
    """The device whose figures stand for the run: the one with the longest span, the first one on a tie."""
    return max(report.devices, key=lambda device: device.span_us, default=None)


def phases_of(report: Report, device: Device | None) -> list[Phase]:
    """The phases of one device, in reading order."""
    return sorted(_of(report.phases, device), key=lambda row: PHASES.index(row.phase))


def is_joined(report: Report) -> bool:
    """Whether the report is on several windows of each rank, with time between them that nobody recorded."""
    return report.recording is not None and len(report.recording.windows) > 1


def not_recorded(report: Report, device: Device | None) -> dict[str, float]:
    """The time of each phase of one device that was not recorded, in microseconds."""
    held: dict[str, float] = {}
    for row in ledger_of(report, device):
        if row.bucket == NOT_RECORDED:
            held[row.phase] = held.get(row.phase, 0.0) + row.us
    return held


def recorded_phases(report: Report, device: Device | None) -> list[Phase]:
    """The phases of one device; of several windows only their recorded time, and no phase that has none."""
    phases = phases_of(report, device)
    if not is_joined(report):
        return phases
    held = not_recorded(report, device)
    recorded = [(row, row.duration_us - held.get(row.phase, 0.0)) for row in phases]
    return [row.model_copy(update={"duration_us": us}) for row, us in recorded if us > 0]


def step_count(report: Report, phase: str) -> int:
    """How many complete steps of a phase the slowest device has."""
    return sum(row.steps for row in phases_of(report, slowest_device(report)) if row.phase == phase)


def ledger_of(report: Report, device: Device | None) -> list[LedgerRow]:
    """The ledger of one device, in the document's order."""
    return _of(report.ledger, device)


def steps_of(report: Report, device: Device | None) -> list[Step]:
    """The steps of one device, in the document's order."""
    return _of(report.steps, device)


def kernels_of(report: Report, device: Device | None) -> list[Kernel]:
    """The kernels of one device, in the document's order."""
    return _of(report.kernels, device)


def ridge(device: Device | None) -> float | None:
    """The ridge, in FLOP per byte, that a run's arithmetic is compared with: matrix products in 16 bits, else fp32."""
    ridges = device.ridge_flop_per_byte if device else {}
    return next((ridges[dtype] for dtype in ("bf16", "fp16", "fp32") if dtype in ridges), None)


def flatten(report: Report) -> dict[str, float]:
    """Every figure of the report that is known, by dotted key.

    Keys: `span.*`, `<phase>.*`, `ledger.<group>_us`, `ledger.<phase>.<bucket>_us`, and one prefix per further section
    of the document. Units are in the names, as in the document.
    """
    device = slowest_device(report)
    rows = dict(_numbers("span", report.span.model_dump()))
    if device:
        rows.update(_numbers("device", device.model_dump()))
    for phase in phases_of(report, device):
        rows.update(_numbers(phase.phase, phase.model_dump(exclude={"rank", "device"})))
    for row in ledger_of(report, device):
        for key in (f"ledger.{row.group}_us", f"ledger.{row.phase}.{row.bucket}_us"):
            rows[key] = rows.get(key, 0.0) + row.us
    for name in _SECTIONS:
        section = getattr(report, name)
        if section is not None:
            rows.update(_numbers(name, section.model_dump()))
    rows.update(_span_shares(report, device))
    return rows


def _of(rows: Sequence[_Row], device: Device | None) -> list[_Row]:
    return [row for row in rows if device and (row.rank, row.device) == (device.rank, device.device)]


def _numbers(prefix: str, section: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _numbers(f"{prefix}.{name}", value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and name not in _NOT_FIGURES:
            yield f"{prefix}.{name}", float(value)


def _span_shares(report: Report, device: Device | None) -> dict[str, float]:
    """Shares of the whole span on the base of the document's own: the span without holes in the recording."""
    span = report.span
    artefact = sum(row.us for row in ledger_of(report, device) if row.bucket == NOT_RECORDED)
    base = span.duration_us - artefact
    shares: dict[str, float] = {}
    if base <= 0 or span.tensor_core_useful_us is None:
        return shares
    shares["span.tensor_core_useful_share"] = span.tensor_core_useful_us / base
    if span.tensor_core_idle_us_min is not None and span.tensor_core_idle_us_max is not None:
        band = span.tensor_core_idle_us_max - span.tensor_core_idle_us_min
        shares["span.tensor_core_unknown_share"] = max(0.0, band) / base
    return shares
