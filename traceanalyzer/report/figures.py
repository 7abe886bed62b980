"""The single figures of the Report that stand on their own: floor, ideal, request, cost, memory and what could be."""

from __future__ import annotations

from traceanalyzer.analysis.pipeline import Analysis
from traceanalyzer.report import document as doc
from traceanalyzer.report import strings
from traceanalyzer.report.values import us


def decode_floor(analysis: Analysis) -> doc.DecodeFloor | None:
    """The decode floor, or None without a complete decode step."""
    floor = analysis.decode_floor
    if floor is None:
        return None
    held = analysis.weights
    return doc.DecodeFloor(
        weight_bytes_held=held.held if held else None,
        weight_bytes_read=floor.weight_bytes,
        kv_bytes=floor.kv_bytes,
        floor_us=us(floor.floor_ns),
        floor_achievable_us=us(floor.floor_achievable_ns),
        measured_us=floor.measured_ns / 1e3,
        ratio=floor.ratio,
        mbu=floor.bytes_ns / floor.measured_ns if floor.bytes_ns else None,
        mbu_busy=floor.bytes_ns / floor.busy_ns if floor.bytes_ns and floor.busy_ns else None,
        us_per_1k_context_ideal=us(floor.ns_per_1k_context_ideal),
        us_per_1k_context_measured=us(floor.ns_per_1k_context_measured),
        source=floor.source,
        confidence=floor.confidence,
        assumptions=[strings.assumption(code) for code in floor.assumptions],
        floor_bytes_us=us(floor.bytes_ns),
        floor_compute_us=us(floor.compute_ns),
        weight_bytes_read_min=floor.weight_bytes_min,
        weight_bytes_read_max=floor.weight_bytes_max,
    )


def prefill_ideal(analysis: Analysis) -> doc.PrefillIdeal | None:
    """The prefill ideal, or None without a complete prefill step."""
    ideal = analysis.prefill_ideal
    if ideal is None:
        return None
    share = ideal.ideal_ns / ideal.measured_ns if ideal.ideal_ns is not None and ideal.measured_ns else None
    return doc.PrefillIdeal(
        flops=ideal.flops,
        ideal_us=us(ideal.ideal_ns),
        measured_us=ideal.measured_ns / 1e3,
        ratio=1 / share if share else None,
        mfu=share,
        source=ideal.source,
        confidence=ideal.confidence,
        assumptions=[strings.assumption(code) for code in ideal.assumptions],
    )


def cost(analysis: Analysis) -> doc.Cost | None:
    """What tokens cost, or None without a price."""
    cost = analysis.cost
    if cost is None:
        return None
    inward, outward = cost.per_1m_input, cost.per_1m_output
    return doc.Cost(
        price_per_gpu_hour=cost.price.per_gpu_hour,
        currency=cost.price.currency,
        gpus=cost.gpus,
        per_1m_input_tokens=cost.per_1m_input,
        per_1m_output_tokens=cost.per_1m_output,
        output_over_input=outward / inward if inward and outward is not None else None,
        idle_share=cost.idle_share,
        assumptions=[strings.assumption(code) for code in cost.assumptions],
    )


def request(analysis: Analysis) -> doc.Request | None:
    """What one request sees, or None where no step is known."""
    view = analysis.request
    if view is None:
        return None
    return doc.Request(
        input_tokens=view.input_tokens,
        output_tokens=view.output_tokens,
        ttft_us=us(view.ttft_ns),
        tpot_us_p50=us(view.tpot_ns_p50),
        tpot_us_p99=us(view.tpot_ns_p99),
        decode_step_flops_over_prefill_flops=view.decode_over_prefill_flops,
        source="steps",
        requests=view.requests,
    )


def memory(analysis: Analysis) -> doc.Memory | None:
    """How the device's memory is used, or None where neither weights nor cache are known."""
    used = analysis.memory
    if used is None:
        return None
    return doc.Memory(
        total_bytes=used.total_bytes,
        weight_bytes=used.weight_bytes,
        kv_bytes_per_token=used.kv_bytes_per_token,
        kv_reserved_bytes=used.kv_reserved_bytes,
        kv_used_bytes=used.kv_used_bytes,
        free_bytes=used.free_bytes,
        max_sequences=used.max_sequences,
        source=used.source,
        confidence=used.confidence,
        assumptions=[strings.assumption(code) for code in used.assumptions],
    )


def sensitivity(analysis: Analysis) -> doc.Sensitivity | None:
    """What one change would save of a decode step, or None without a complete one."""
    saved = analysis.sensitivity
    if saved is None:
        return None
    return doc.Sensitivity(
        compute_2x=saved.compute_2x,
        bandwidth_2x=saved.bandwidth_2x,
        launches_free=saved.launches_free,
        weights_half=saved.weights_half,
        kv_half=saved.kv_half,
    )


def batching(analysis: Analysis) -> doc.Batching | None:
    """How far batching carries, or None where the decode step is not known well enough to tell."""
    found = analysis.batching
    if found is None:
        return None
    return doc.Batching(
        points=[
            doc.BatchPoint(sequences=point.sequences, step_us=point.step_ns / 1e3, tokens_per_s=point.tokens_per_s)
            for point in found.points
        ],
        cap=found.cap,
        cap_reason=found.cap_reason,
        batching_efficiency=found.efficiency,
        effective_batch=found.effective_batch,
        streams=found.streams,
        source="step-time model",
        confidence=found.confidence,
        assumptions=[strings.assumption(code) for code in found.assumptions],
    )
