"""The single figures of the Report that stand on their own: floor, ideal, request and cost."""

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
    busy_share = floor.floor_ns / floor.busy_ns if floor.floor_ns and floor.busy_ns else None
    return doc.DecodeFloor(
        weight_bytes_held=None,
        weight_bytes_read=floor.weight_bytes,
        kv_bytes=floor.kv_bytes,
        floor_us=us(floor.floor_ns),
        floor_achievable_us=us(floor.floor_achievable_ns),
        measured_us=floor.measured_ns / 1e3,
        ratio=floor.ratio,
        mbu=1 / floor.ratio if floor.ratio else None,
        mbu_busy=busy_share,
        us_per_1k_context_ideal=us(floor.ns_per_1k_context_ideal),
        us_per_1k_context_measured=us(floor.ns_per_1k_context_measured),
        source="shapes" if floor.weight_bytes is not None else "none",
        confidence=floor.confidence,
        assumptions=[strings.assumption(code) for code in floor.assumptions],
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
        source="shapes" if ideal.flops is not None else "none",
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
    )
