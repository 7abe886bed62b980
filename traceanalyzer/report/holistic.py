"""The section of the Report that holds the figures of Holistic Trace Analysis: nanoseconds to microseconds."""

from __future__ import annotations

from typing import Any

from traceanalyzer.analysis.hta import DeviceFigures, Scope
from traceanalyzer.analysis.pipeline import Analysis
from traceanalyzer.report import document as doc

_OF_QUEUE = ("queue_coverage", "queue_mean", "queue_p50", "queue_max")


def section(analysis: Analysis) -> doc.HTA | None:
    """What HTA says of the run, or None where it was not asked or failed."""
    found = analysis.hta
    if found is None:
        return None
    return doc.HTA(
        source=found.source,
        times=[_time(device, scope) for device in found.devices for scope in (device.whole, *device.phases)],
        streams=[row for device in found.devices for row in _streams(device)],
        launches=[row for device in found.devices for row in _launches(device)],
        pieces_omitted=sum(device.pieces_omitted for device in found.devices),
    )


def _place(device: DeviceFigures) -> dict[str, Any]:
    info = device.timeline.device
    return {"rank": info.rank, "device": info.device}


def _time(device: DeviceFigures, scope: Scope) -> doc.HTATime:
    times = scope.temporal
    return doc.HTATime(
        **_place(device),
        phase=scope.phase,
        pieces=scope.pieces,
        kernel_us=times.kernel_ns / 1e3,
        idle_us=times.idle_ns / 1e3,
        compute_us=times.compute_ns / 1e3,
        non_compute_us=times.non_compute_ns / 1e3,
        types_us={name: ns / 1e3 for name, ns in sorted(scope.types_ns.items())},
        overlap_share=scope.overlap_share,
    )


def _streams(device: DeviceFigures) -> list[doc.HTAStream]:
    """Every stream's idle time, and its queue where launches are looked at."""
    queues = {q.stream: (q.coverage, q.mean, q.p50, q.longest) for q in device.queues}
    return [
        doc.HTAStream(
            **_place(device),
            stream=stream,
            host_wait_us=causes.get("host_wait", 0) / 1e3,
            kernel_wait_us=causes.get("kernel_wait", 0) / 1e3,
            other_us=causes.get("other", 0) / 1e3,
            **dict(zip(_OF_QUEUE, queues.get(stream, (None,) * len(_OF_QUEUE)), strict=True)),
        )
        for stream, causes in sorted(device.whole.idle_ns.items())
    ]


def _launches(device: DeviceFigures) -> list[doc.HTALaunches]:
    told = device.launches
    if told is None:
        return []
    return [
        doc.HTALaunches(
            **_place(device),
            count=told.count,
            coverage=told.coverage,
            cpu_us_mean=told.cpu_ns_mean / 1e3,
            gpu_us_mean=told.gpu_ns_mean / 1e3,
            delay_us_mean=told.delay_ns_mean / 1e3,
            delay_us_p50=told.delay_ns_p50 / 1e3,
            delay_us_p99=told.delay_ns_p99 / 1e3,
        )
    ]
