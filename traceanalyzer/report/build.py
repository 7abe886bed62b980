"""Analysis -> Report: names decoded, nanoseconds to microseconds, NaN to null, codes to sentences.

What could be wrong: names come from the trace and are hostile; they are capped here and escaped by every rendering.
"""

from __future__ import annotations

from datetime import UTC, datetime

from traceanalyzer import __version__
from traceanalyzer.analysis.pipeline import Analysis, DeviceAnalysis
from traceanalyzer.findings.evaluate import evaluate
from traceanalyzer.findings.model import Finding
from traceanalyzer.report import closeups, compared, figures, findings, holistic, recorded, strings, tables, waiting
from traceanalyzer.report import document as doc
from traceanalyzer.report.described import described
from traceanalyzer.report.values import capped, us
from traceanalyzer.trace.collector import number, section, word
from traceanalyzer.trace.tables import Metadata, Note, Source, Window


def build(analysis: Analysis) -> doc.Report:
    """Compose the Report of an analysis."""
    main_first = sorted(analysis.devices, key=lambda device: device is not analysis.main)
    steps, steps_omitted = tables.step_rows(main_first)
    found = evaluate(analysis)
    main_trace = analysis.main.timeline.trace
    report = doc.Report(
        schema_version=doc.SCHEMA_VERSION,
        report_id="",
        tool=doc.Tool(name="traceanalyzer", version=__version__),
        options=_options(analysis),
        run=_run(analysis),
        traces=[
            _trace(window.source, window.metadata, window.kernels)
            for trace in analysis.traces
            for window in trace.windows or [Window(trace.source, trace.metadata, len(trace.kernels), 0, 0)]
        ],
        devices=[_device(device) for device in analysis.devices],
        quality=_quality(analysis),
        verdict=_verdict(analysis, found),
        span=_span(analysis),
        profiling=recorded.profiling(main_trace),
        service=recorded.service(main_trace),
        phases=[tables.phase_row(device, phase) for device in analysis.devices for phase in device.phases],
        request=figures.request(analysis),
        ledger=[row for device in analysis.devices for row in tables.ledger_rows(device)],
        steps=steps,
        steps_omitted=steps_omitted,
        kernels=tables.kernel_rows(main_first),
        decode_floor=figures.decode_floor(analysis),
        prefill_ideal=figures.prefill_ideal(analysis),
        memory=figures.memory(analysis),
        sensitivity=figures.sensitivity(analysis),
        cost=figures.cost(analysis),
        findings=findings.rows(analysis, found),
        batching=figures.batching(analysis),
        steplog=recorded.steplog(main_trace),
        counters=recorded.counters(main_trace),
        recording=recorded.recording(analysis),
        redaction=recorded.redaction(analysis),
        hta=holistic.section(analysis),
        idle_causes=[row for device in main_first for row in waiting.idle_causes(device)],
        launches=waiting.launches(analysis),
        critical_path=waiting.critical_paths(analysis),
        ranks=compared.section(analysis),
        closeups=closeups.sections(analysis),
        unknown_work=tables.unknown_rows(analysis.main),
    )
    return doc.with_id(report)


def _options(analysis: Analysis) -> doc.Options:
    options = analysis.options
    price = options.price
    return doc.Options(
        gpu=options.gpu,
        model=capped(options.model.label) if options.model else None,
        captures=[capped(trace.source.name) for trace in options.captures],
        price_per_gpu_hour=price.per_gpu_hour if price else None,
        currency=price.currency if price else None,
        peaks_tflops=dict(sorted(options.peaks_tflops.items())),
        bandwidth_gbs=options.bandwidth_gbs,
    )


def _run(analysis: Analysis) -> doc.Run:
    facts = analysis.main_run
    trace = analysis.main.timeline.trace
    producer = trace.metadata.producer or {}
    model = analysis.main.timeline.model
    window = section(trace.metadata.collector, "window")
    return doc.Run(
        workload=facts.workload,
        engine=facts.engine,
        engine_version=producer.get((facts.engine or "").lower()) or word(window, "engine_version"),
        parallel={"tp": model.tp} if model.tp and model.tp > 1 else {},
        graph_mode=facts.graph_mode,
        labels={},
        sample_weight=number(section(trace.metadata.collector, "sampling"), "weight_s"),
        model=described(model),
    )


def _trace(source: Source, metadata: Metadata, kernels: int) -> doc.TraceInfo:
    """One input file."""
    recorded = None
    if metadata.recorded_at_ns is not None:
        recorded = datetime.fromtimestamp(metadata.recorded_at_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return doc.TraceInfo(
        name=source.name,
        sha256=source.sha256,
        format=source.format,
        bytes=source.bytes,
        events=source.events,
        kernels=kernels,
        rank=metadata.rank,
        world_size=metadata.world_size,
        recorded_at=recorded,
        host_hash=metadata.host_hash,
        producer=dict(sorted((metadata.producer or {}).items())),
        collector=dict(metadata.collector) if metadata.collector else None,
    )


def _device(device: DeviceAnalysis) -> doc.Device:
    info, line = device.timeline.device, device.timeline
    return doc.Device(
        rank=info.rank,
        device=info.device,
        kind=info.kind,
        gpu_id=info.gpu.id if info.gpu else None,
        name=capped(info.name) if info.name else (info.gpu.names[0] if info.gpu and info.gpu.names else None),
        identified_by=info.identified_by,
        span_us=line.span_ns / 1e3,
        busy_us=line.busy.length / 1e3,
        kernel_us=line.kernel_busy.length / 1e3,
        peaks_tflops=info.peaks_tflops,
        achievable_tflops=info.achievable_tflops,
        bandwidth_gbs=info.bandwidth_gbs,
        achievable_gbs=info.achievable_gbs,
        memory_bytes=info.memory_bytes,
        ridge_flop_per_byte=info.ridge_flop_per_byte,
        has_tensor_cores=info.has_tensor_cores,
        vector_peaks_tflops=info.vector_peaks_tflops,
    )


def _quality(analysis: Analysis) -> list[doc.QualityNote]:
    """Notes by severity; the same code from several ranks counts together."""
    order = {"error": 0, "warning": 1, "info": 2}
    merged: dict[tuple[str, str], Note] = {}
    for note in analysis.quality:
        key = (note.code, note.detail)
        count = note.count + (merged[key].count if key in merged else 0)
        merged[key] = Note(note.code, note.severity, count, note.detail)
    notes = sorted(merged.values(), key=lambda note: order[note.severity])
    return [
        doc.QualityNote(
            code=note.code,
            severity=note.severity,
            message=capped(strings.quality_message(note.code, note.count, note.detail)),
            count=note.count,
        )
        for note in notes
    ]


def _verdict(analysis: Analysis, found: tuple[Finding, ...]) -> doc.Verdict:
    facts, run, main = analysis.verdict, analysis.main_run, analysis.main
    phase, floor = facts.phase, analysis.decode_floor
    duration = phase.duration_ns if phase else main.timeline.shared_ns
    ridge = main.timeline.device.matrix_ridge
    rows = main.ledger.table
    if phase:
        rows = rows[rows["phase"] == phase.phase]
    by_bucket = rows.groupby("bucket")["ns"].sum()

    def share(bucket: str) -> float | None:
        return float(by_bucket.get(bucket, 0)) / duration if duration else None

    step_ns = phase.step_ns[1] if phase and phase.step_ns else None
    ratio = floor.ratio if floor and phase and phase.phase == "decode" else None
    if floor and phase and phase.phase == "decode":
        step_ns = floor.measured_ns
    text = strings.headline(
        facts.bound,
        strings.HeadlineFacts(
            workload=run.workload,
            phase=phase.phase if phase else None,
            time_share=phase.time_share if phase else None,
            step_us=us(step_ns),
            step_bytes=(floor.weight_bytes or 0.0) + (floor.kv_bytes or 0.0) if floor and ratio else None,
            floor_ratio=ratio,
            bandwidth_share=phase.bandwidth_share if phase else None,
            compute_share=phase.compute_share if phase else None,
            idle_share=phase.idle_share if phase else _whole_idle_share(main),
            communication_share=share("communication"),
            no_tensor_core_share=share("no_tensor_core"),
            gpu_util=_gpu_util(main),
            tokens_per_step=phase.tokens_mean if phase else None,
            sequences=phase.sequences_mean if phase else None,
            whole_steps=phase.steps if phase else None,
            ridge=ridge,
            by_tokens=bool(phase and phase.bound.by_tokens),
            no_peaks=ridge is None,
            on_cpu=main.timeline.device.kind == "cpu",
        ),
    )
    return doc.Verdict(
        headline=text,
        bound=facts.bound,
        confidence=facts.confidence,
        ruled_out=findings.ruled_out(analysis, found),
    )


def _whole_idle_share(device: DeviceAnalysis) -> float | None:
    """Idle time over the recorded part of the span."""
    idle = device.ledger.group_ns("idle") - device.timeline.unrecorded.length
    return idle / device.timeline.recorded_ns if device.timeline.recorded_ns > 0 else None


def _gpu_util(device: DeviceAnalysis) -> float | None:
    """Union of kernels over the span without recording artefacts (method: utilisation)."""
    line = device.timeline
    return line.kernel_busy.length / line.recorded_ns if line.recorded_ns > 0 else None


def _span(analysis: Analysis) -> doc.Span:
    main = analysis.main
    line, book = main.timeline, main.ledger
    useful, unknown = book.total_ns("tensor_core_useful"), book.total_ns("tensor_core_unknown")
    measurable = line.device.has_tensor_cores is True
    idle = line.recorded_ns - useful
    return doc.Span(
        duration_us=line.span_ns / 1e3,
        gpu_busy_us=line.busy.length / 1e3,
        gpu_util=_gpu_util(main),
        tensor_core_useful_us=useful / 1e3 if measurable else None,
        tensor_core_idle_us_min=(idle - unknown) / 1e3 if measurable else None,
        tensor_core_idle_us_max=idle / 1e3 if measurable else None,
        sm_fill=analysis.sm_fill,
        bandwidth_share=analysis.bandwidth_share,
        bytes_known_share=analysis.bytes_known_share,
    )
