"""What the appendix lists: the environment, the devices with their peaks, the traces, and the options of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows
from traceanalyzer.report.document import Device, ModelInfo, Report, TraceInfo
from traceanalyzer.report.strings.labels import GRAPH_MODES, source_label
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.pieces import device_name


@dataclass(frozen=True, slots=True)
class Table:
    """A printed table: column heads, rows of cells; `numeric` columns are aligned to the right."""

    caption: str
    columns: tuple[str, ...]
    numeric: frozenset[int]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class AppendixView:
    """Everything of the appendix that depends on the report."""

    environment: tuple[tuple[str, str], ...]
    devices: Table
    traces: Table
    options: tuple[tuple[str, str], ...]


def appendix_view(report: Report) -> AppendixView:
    """The appendix of a report."""
    return AppendixView(
        environment=tuple(_environment(report)),
        devices=_devices(report),
        traces=_traces(report),
        options=tuple(_options(report)),
    )


def _environment(report: Report) -> Iterable[tuple[str, str]]:
    run = report.run
    engine = " ".join(part for part in (run.engine, run.engine_version) if part)
    producers = dict.fromkeys(_pairs(trace.producer) for trace in report.traces if trace.producer)
    listed = (
        ("ran.engine", engine),
        ("ran.model", run.model.name if run.model else None),
        ("appendix.model_shape", _shape(run.model) if run.model else None),
        ("appendix.graph_mode", GRAPH_MODES.get(run.graph_mode, run.graph_mode) if run.graph_mode else None),
        ("appendix.parallel", _pairs(run.parallel)),
        ("appendix.labels", _pairs(run.labels)),
        ("appendix.producer", "; ".join(producers)),
    )
    return ((text(key), value) for key, value in listed if value)


def _shape(model: ModelInfo) -> str:
    parts = [
        text("appendix.layers", count=model.layers) if model.layers else None,
        text("appendix.hidden", count=fmt.count(model.hidden)) if model.hidden else None,
        text("appendix.heads", heads=model.heads, kv_heads=model.kv_heads) if model.heads and model.kv_heads else None,
        text("appendix.parameters", count=fmt.count(model.parameters)) if model.parameters else None,
        model.dtype,
        model.quantization,
        text("appendix.from", source=source_label(model.source)) if model.source else None,
    ]
    return ", ".join(part for part in parts if part)


def _devices(report: Report) -> Table:
    main = rows.slowest_device(report)
    heads = ("device", "rank", "kind", "identified", "span", "busy", "bandwidth", "peaks", "memory")
    return Table(
        caption=text("appendix.devices"),
        columns=tuple(text(f"appendix.{head}") for head in heads),
        numeric=frozenset({1, 4, 5, 6, 8}),
        rows=tuple(_device(device, device is main and len(report.devices) > 1) for device in report.devices),
    )


def _device(device: Device, marked: bool) -> tuple[str, ...]:
    name = f"{device_name(device)}, {device.device}"
    return (
        f"{name} {text('appendix.slowest')}" if marked else name,
        fmt.UNKNOWN if device.rank is None else str(device.rank),
        device.kind,
        device.identified_by or fmt.UNKNOWN,
        fmt.duration(device.span_us),
        fmt.duration(device.busy_us),
        fmt.byte_rate(device.bandwidth_gbs),
        _pairs({dtype: fmt.flop_rate(peak) for dtype, peak in sorted(device.peaks_tflops.items())}) or fmt.UNKNOWN,
        fmt.size(device.memory_bytes),
    )


def _traces(report: Report) -> Table:
    heads = ("file", "rank", "format", "size", "events", "kernels", "sha")
    return Table(
        caption=text("appendix.traces"),
        columns=tuple(text(f"appendix.{head}") for head in heads),
        numeric=frozenset({1, 3, 4, 5}),
        rows=tuple(_trace(trace) for trace in report.traces),
    )


def _trace(trace: TraceInfo) -> tuple[str, ...]:
    rank = fmt.UNKNOWN if trace.rank is None else str(trace.rank)
    return (trace.name, rank, trace.format, fmt.size(trace.bytes), fmt.count(trace.events), fmt.count(trace.kernels),
            trace.sha256)  # fmt: skip


def _options(report: Report) -> Iterable[tuple[str, str]]:
    options = report.options
    listed = (
        ("appendix.gpu", options.gpu),
        ("appendix.model", options.model),
        ("appendix.peaks_given", _pairs({name: fmt.flop_rate(peak) for name, peak in options.peaks_tflops.items()})),
        ("appendix.bandwidth_given", fmt.byte_rate(options.bandwidth_gbs) if options.bandwidth_gbs else None),
        (
            "appendix.price",
            fmt.money(options.price_per_gpu_hour, options.currency or "") if options.price_per_gpu_hour else None,
        ),
    )
    return ((text(key), value) for key, value in listed if value)


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
