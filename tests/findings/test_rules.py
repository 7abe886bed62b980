"""Every rule on phases made by hand: found, passed, not applicable, error; savings computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.analysis.lines import device
from tests.findings.made import US, asked, attention, gemm, kernel, phase, says, small
from traceanalyzer.analysis.forecast.model import QUANTISED_EFFECT, QUANTISED_EFFECT_4_BITS
from traceanalyzer.analysis.steps import RunFacts
from traceanalyzer.findings.registry import RULES
from traceanalyzer.findings.subject import PhaseSubject
from traceanalyzer.trace.tables import MEMCPY, MISSING

GRAPH = RunFacts("generation", None, "full", 1)


def recorded_names(about: PhaseSubject, rule: str) -> set[int]:
    return {touched.name for touched in asked(rule, about).kernels}


# ---- the host


def test_waiting_for_launches_is_found_and_graphs_leave_a_tenth() -> None:
    about = phase([gemm(60, 50), *[small(3, gap=10, late=True)] * 4])
    found = asked("launch_bound_decode", about)
    # 4 gaps of 10 us in a step of 60 + 4 x 13 = 112 us; a tenth of the 40 us is left.
    assert about.step_ns == 112 * US
    assert found.status == "found"
    assert found.saving_ns == pytest.approx(36 * US, rel=0.02)
    assert found.predicted_step_ns == pytest.approx(76 * US, rel=0.02)
    assert found.predicted_tokens_per_s == pytest.approx(1e6 / 76, rel=0.02)
    assert {touched.name for touched in found.kernels} == {3}
    assert found.kernels[0].count_per_step == 4


def test_waiting_for_launches_passes_with_graphs_without_waiting_or_with_long_kernels() -> None:
    waiting = [gemm(60, 50), *[small(3, gap=10, late=True)] * 4]
    assert says(asked("launch_bound_decode", phase(waiting, run=GRAPH))) == "passed: replayed_graphs"
    queued = [gemm(60, 50), *[small(3, gap=10)] * 4]
    assert says(asked("launch_bound_decode", phase(queued))) == "passed: hardly_waits_for_launches"
    long = [gemm(60, 50, gap=30, late=True)] * 4
    assert says(asked("launch_bound_decode", phase(long))) == "passed: kernels_are_long"


def test_waiting_between_steps_is_no_matter_of_launches() -> None:
    about = phase([gemm(60, 50), *[small(3)] * 4], after=100)
    assert says(asked("launch_bound_decode", about)) == "passed: hardly_waits_for_launches"


def test_waiting_for_launches_is_doubted_where_stacks_were_recorded() -> None:
    kernels = [gemm(60, 50), *[small(3, gap=10, late=True)] * 4]
    sure, doubted = (asked("launch_bound_decode", phase(kernels, with_stack=flag)) for flag in (False, True))
    assert doubted.confidence is not None
    assert sure.confidence is not None
    assert doubted.confidence == pytest.approx(0.7 * sure.confidence, abs=0.006)  # as the verdict doubts a host bound
    assert "stacks_recorded" in {fact.code for fact in doubted.evidence}


def test_waiting_for_launches_cannot_be_judged_without_launches_and_not_on_a_cpu() -> None:
    without = phase([gemm(60, 50, launch=MISSING), *[small(3, gap=10, launch=MISSING)] * 4])
    assert says(asked("launch_bound_decode", without)) == "error: launches_not_recorded"
    on_cpu = phase([gemm(60, 50)], info=device("cpu"))
    assert says(asked("launch_bound_decode", on_cpu)) == "not_applicable: on_cpu"
    assert says(asked("launch_bound_decode", None)) == "not_applicable: no_complete_step"


def token_copy(waits: float) -> dict[str, Any]:
    """A copy to the host whose call begins so many microseconds before the copy starts and returns when it is done."""
    return kernel(1, kind=MEMCPY, category="memcpy", role="memcpy", name=50, waits=waits)


def test_reading_the_token_is_found_and_gains_what_the_host_had_waited() -> None:
    # 100 us of work, the copy, 50 us idle. The host waited 80 us: its own 71 us of work fit behind the device's.
    about = phase([gemm(100, 90), token_copy(80)], after=50)
    found = asked("d2h_sync_per_token", about)
    assert found.status == "found"
    assert found.saving_ns == pytest.approx(50 * US, rel=0.1)  # nine gaps among ten steps
    assert {touched.name for touched in found.kernels} == {50}
    # A host that hardly waited is itself the limit: submitting ahead gains only what it waited.
    busy = phase([gemm(100, 90), token_copy(20)], after=50)
    assert asked("d2h_sync_per_token", busy).saving_ns == pytest.approx(20 * US, rel=0.15)


def test_reading_the_token_passes_without_waiting_or_without_idle_time_after_it() -> None:
    assert says(asked("d2h_sync_per_token", phase([gemm(100, 90)], after=50))) == "passed: no_sync_every_step"
    quick = phase([gemm(1000, 900), token_copy(80)], after=2)
    assert says(asked("d2h_sync_per_token", quick)) == "passed: idle_after_sync_small"
    without = phase([gemm(60, 50, launch=MISSING)])
    assert says(asked("d2h_sync_per_token", without)) == "error: launches_not_recorded"


# ---- the batch


def test_requests_that_take_turns_are_found() -> None:
    # Two streams: 500, 900, 501, 901, ... A step is nothing but weights, so both together take one step's time.
    contexts = [base + n for n in range(5) for base in (500.0, 900.0)]
    about = phase([gemm(100, 80)], contexts=contexts)
    found = asked("requests_in_turns", about)
    assert found.status == "found"
    assert found.predicted_step_ns == pytest.approx(100 * US, rel=0.01)
    assert found.predicted_tokens_per_s == pytest.approx(2e4, rel=0.01)
    assert found.saving_ns == pytest.approx(50 * US, rel=0.02)


BATCH_OF_4 = {"sequences": 4.0, "tokens": 4.0, "decode_tokens": 4.0, "decode_sequences": 4.0}


def groups_of_4(room: int | None = None) -> PhaseSubject:
    """Two groups of four sequences that take turns; the weights take 80 of 100 us, the math 8: the ridge is at 40."""
    contexts = [base + 4.0 * n for n in range(5) for base in (2000.0, 9000.0)]
    return phase([gemm(100, 80, compute=8.0, tokens=4)], facts=BATCH_OF_4, contexts=contexts, room=room)


def test_groups_that_take_turns_are_found_whatever_they_serve() -> None:
    found = asked("requests_in_turns", groups_of_4())
    assert found.status == "found"
    assert dict(found.evidence[0].values) == {"count": 8, "groups": 2, "sequences": 4.0}
    assert found.predicted_step_ns == pytest.approx(100 * US, rel=0.01)
    assert found.predicted_tokens_per_s == pytest.approx(8e4, rel=0.01)
    assert found.saving_ns == pytest.approx(50 * US, rel=0.02)


def test_a_larger_batch_counts_what_it_saves_beyond_the_requests_that_take_turns() -> None:
    # Today 4 a step of 100 us; in turns no more, 8; the promise ends at 8 x 4 = 32, still below the ridge of 40.
    # Today's four tokens then take 100 x 4 / 32 instead of 100 x 4 / 8 us.
    found = asked("decode_batch_below_ridge", groups_of_4())
    assert found.status == "found"
    assert found.predicted_step_ns == pytest.approx(100 * US, rel=0.01)
    assert found.saving_ns == pytest.approx(37.5 * US, rel=0.02)
    assert [fact.code for fact in found.evidence].count("beyond_turns") == 1
    assert says(asked("decode_batch_below_ridge", groups_of_4(room=8))) == "passed: memory_full"


def test_requests_in_turns_passes_for_one_stream_and_for_a_batch_and_needs_contexts() -> None:
    assert says(asked("requests_in_turns", phase([gemm(100, 80)]))) == "passed: one_stream"
    grows = [2000.0 + 4 * n for n in range(10)]
    batch = phase([gemm(100, 80, tokens=4)], facts=BATCH_OF_4, contexts=grows)
    assert says(asked("requests_in_turns", batch)) == "passed: served_together"
    blind = phase([gemm(100, 80)], facts={"context_sum": np.nan})
    assert says(asked("requests_in_turns", blind)) == "error: contexts_unknown"
    assert says(asked("requests_in_turns", phase([gemm(100, 80)], steps=3))) == "not_applicable: too_few_steps"


def test_a_batch_below_the_ridge_is_found_and_bounded_by_the_memory() -> None:
    # Math takes 1 us where the weights take 80: the ridge is at 80 sequences.
    about = phase([gemm(100, 80, compute=1.0)], room=4)
    found = asked("decode_batch_below_ridge", about)
    assert found.status == "found"
    assert found.predicted_tokens_per_s == pytest.approx(4e4, rel=0.01)  # four sequences in the same 100 us
    assert found.saving_ns == pytest.approx(75 * US, rel=0.02)
    assert asked("decode_batch_below_ridge", phase([gemm(100, 80, compute=1.0)])).predicted_tokens_per_s == (
        pytest.approx(8e4, rel=0.01)
    )


def test_a_batch_at_the_ridge_or_of_all_the_memory_holds_passes() -> None:
    near = phase([gemm(100, 80, compute=50.0)])
    assert says(asked("decode_batch_below_ridge", near)) == "passed: batch_at_ridge"
    full = phase([gemm(100, 80, compute=1.0)], room=1)
    assert says(asked("decode_batch_below_ridge", full)) == "passed: memory_full"
    unknown = phase([gemm(100, 80)], facts={"sequences": np.nan})
    assert says(asked("decode_batch_below_ridge", unknown)) == "error: tokens_unknown"


# ---- fewer bytes


def test_weights_that_dominate_are_found_and_eight_bits_keep_nine_tenths_of_the_gain() -> None:
    about = phase([gemm(100, 98, compute=1.0), small(20)])
    found = asked("weights_dominate", about)
    # The fixed part of a kernel is 2 us at most, the rest scales: half of 98 us, nine tenths of it kept.
    assert found.status == "found"
    assert found.saving_ns == pytest.approx(QUANTISED_EFFECT * 0.5 * 98 * US, rel=0.03)
    assert {touched.name for touched in found.kernels} == {1}


def test_a_copy_that_the_host_waits_for_cancels_no_saving_before_it() -> None:
    # The call begins 80 us before the copy and returns after it. The product is done 0.9 x 98 / 2 us earlier, and so is
    # the copy, whose call came 20 us into the step.
    found = asked("weights_dominate", phase([gemm(100, 98, compute=1.0), token_copy(80)]))
    assert found.status == "found"
    assert found.saving_ns == pytest.approx(44 * US, rel=0.03)


def test_a_copy_whose_call_came_only_when_the_device_was_idle_waits_for_it_all_the_same() -> None:
    late_copy = token_copy(5) | {"gap": 10.0}
    found = asked("weights_dominate", phase([gemm(100, 98, compute=1.0), late_copy]))
    assert says(found) == "passed: saves_too_little"


@pytest.mark.parametrize(
    ("kernels", "after", "reason"),
    [
        ([gemm(20, 18), *[small(4)] * 10], 0.0, "weights_small"),
        ([gemm(100, 90)], 130.0, "idle_dominates"),
        ([gemm(45, 40), *[small(6)] * 8, gemm(1, 1)], 0.0, "elementwise_dominates"),
        ([gemm(100, 50, compute=90.0)], 0.0, "compute_binds"),
        ([gemm(100, 90, k=180_000.0)], 0.0, "already_quantised"),
        ([gemm(100, 90, k=22_500.0)], 0.0, "fp32_first"),
    ],
)
def test_weights_pass(kernels: list[dict[str, Any]], after: float, reason: str) -> None:
    # A weight of 90 us is 9e7 bytes in 1000 x k elements: k of 180,000 means half a byte each, 22,500 four bytes.
    found = asked("weights_dominate", phase(kernels, after=after))
    assert found.reason is not None
    assert (found.status, found.reason.code) == ("passed", reason)


def test_weights_are_told_from_scores_that_run_in_the_same_kernel() -> None:
    about = phase([gemm(100, 98, compute=1.0, name=6), scores(30, True), softmax(5), scores(30, False)])
    found = asked("weights_dominate", about)
    assert found.saving_ns == pytest.approx(QUANTISED_EFFECT * 0.5 * 98 * US, rel=0.03)
    assert [(touched.name, touched.count_per_step) for touched in found.kernels] == [(6, 1)]


def test_weights_of_eight_bits_go_to_four() -> None:
    found = asked("weights_dominate", phase([gemm(100, 98, compute=1.0, k=98_000.0)]))
    assert found.saving_ns == pytest.approx(QUANTISED_EFFECT_4_BITS * 0.48 * 98 * US, rel=0.03)


def test_weights_need_shapes_and_matrix_products() -> None:
    blind = phase([gemm(100, 90, weight_bytes=np.nan, bytes=np.nan, flops=np.nan)])
    assert says(asked("weights_dominate", blind)) == "error: work_not_recorded"
    odd = phase([gemm(100, 90, weight_bytes=np.nan, bytes=np.nan, flops=np.nan, op=0)], dims=("[[1, 2], [3]]",))
    assert says(asked("weights_dominate", odd)) == "error: work_not_modelled"
    assert says(asked("weights_dominate", phase([small(3)]))) == "not_applicable: no_matrix_products"


def test_a_cache_that_dominates_is_found_and_eight_bits_pass() -> None:
    about = phase([attention(50, 48), gemm(50, 45)])
    found = asked("kv_dominates", about)
    assert found.status == "found"
    assert found.saving_ns == pytest.approx(QUANTISED_EFFECT * 0.5 * 48 * US, rel=0.04)
    assert {touched.name for touched in found.kernels} == {2}
    eight = phase([attention(50, 48, kv_len=48e6 / 2048), gemm(50, 45)])
    assert says(asked("kv_dominates", eight)) == "passed: kv_already_small"
    assert says(asked("kv_dominates", phase([attention(5, 4), gemm(50, 45)]))) == "passed: kv_small"
    assert says(asked("kv_dominates", phase([gemm(50, 45)]))) == "not_applicable: no_attention"
    blind = phase([attention(50, 48, kv_bytes=np.nan), gemm(50, 45)])
    assert says(asked("kv_dominates", blind)) == "error: work_not_recorded"


CACHE = "[[[1, 8, 500, 128], [1, 8, 1, 128]], []]"
ROTARY = "[[[1, 8, 1, 64], [1, 8, 1, 64]], []]"


def cat(us: float, op: int) -> dict[str, Any]:
    return small(us, category="copy", role="cat", name=4, op=op)


def test_copies_of_the_cache_are_found_and_those_of_a_rotary_embedding_are_not_among_them() -> None:
    kernels = [gemm(60, 50), cat(3, 1), cat(20, 0), cat(20, 0), attention(10, 5)]
    found = asked("kv_cat_copies", phase(kernels, dims=(CACHE, ROTARY)))
    assert found.status == "found"
    assert found.saving_ns == pytest.approx(36 * US, rel=0.03)  # 2 us are left of each 20
    assert [(touched.name, touched.count_per_step) for touched in found.kernels] == [(4, 2)]


def test_copies_of_the_cache_pass_without_any_and_need_shapes() -> None:
    rotary = phase([gemm(60, 50), cat(3, 1), attention(10, 5)], dims=(CACHE, ROTARY))
    assert says(asked("kv_cat_copies", rotary)) == "passed: cats_are_small"
    paged = phase([gemm(60, 50), attention(10, 5)])
    assert says(asked("kv_cat_copies", paged)) == "passed: no_cat_per_layer"
    blind = phase([gemm(60, 50), cat(20, MISSING), attention(10, 5)])
    assert says(asked("kv_cat_copies", blind)) == "error: shapes_not_recorded"
    assert says(asked("kv_cat_copies", phase([gemm(60, 50)]))) == "not_applicable: no_attention"


# ---- the kernels


@pytest.mark.parametrize(
    ("rule", "name"), [("unfused_elementwise", "decode"), ("unfused_elementwise_prefill", "prefill")]
)
def test_chains_of_elementwise_kernels_are_found(rule: str, name: str) -> None:
    chain = [small(5, memory=1, gap=1.0)] * 6
    about = phase([gemm(40, 35), *chain, gemm(40, 35)], name=name)
    found = asked(rule, about)
    # Six kernels of 5 us with 1 us between them become one of 2 us: 35 us inside the chain, 2 of them left.
    assert found.status == "found"
    assert found.saving_ns == pytest.approx((30 + 5 - 2) * US, rel=0.03)
    assert [(touched.name, touched.count_per_step) for touched in found.kernels] == [(3, 6)]


def test_a_fused_chain_takes_what_its_largest_kernel_moves_at_the_bandwidth_the_card_reaches() -> None:
    about = phase([gemm(40, 35), small(30, memory=8.8), small(30, memory=17.6), gemm(40, 35)])
    assert asked("unfused_elementwise", about).saving_ns == pytest.approx((60 - 20) * US, rel=0.03)


def test_a_chain_of_unknown_traffic_takes_what_its_longest_kernel_takes() -> None:
    about = phase([gemm(40, 35), small(30, bytes=np.nan), small(20, bytes=np.nan), gemm(40, 35)])
    found = asked("unfused_elementwise", about)
    assert found.saving_ns == pytest.approx(20 * US, rel=0.03)


def test_elementwise_passes_where_it_is_small_alone_or_the_samplers() -> None:
    assert says(asked("unfused_elementwise", phase([gemm(90, 80), small(5), small(5), gemm(9, 8)]))) == (
        "passed: elementwise_small"
    )
    alone = phase([gemm(10, 8), small(10), gemm(10, 8), small(10), gemm(10, 8)])
    assert says(asked("unfused_elementwise", alone)) == "passed: no_chains"
    tail = phase([gemm(10, 8), small(10), small(10), small(10)])
    assert says(asked("unfused_elementwise", tail)) == "passed: elementwise_small"
    assert says(asked("unfused_elementwise", phase([small(10), small(10)]))) == "not_applicable: no_matrix_products"


def fp32(us: float, memory: float, compute: float) -> dict[str, Any]:
    # The fp32 peak is a tenth of the bf16 peak, so the same FLOPs take ten times as long.
    return gemm(us, memory, compute / 10, dtype="fp32", tensor_core=0)


def test_fp32_products_are_found_and_gain_by_the_roof_that_binds_them() -> None:
    bound_by_bytes = asked("fp32_gemm", phase([fp32(102, 80, 20.0)]))
    assert bound_by_bytes.saving_ns == pytest.approx(50 * US, rel=0.03)  # half the bytes
    bound_by_math = asked("fp32_gemm", phase([fp32(102, 10, 80.0)]))
    assert bound_by_math.saving_ns == pytest.approx(90 * US, rel=0.03)  # a tenth of the math, down to the bytes at 5


def test_fp32_passes_in_bf16_and_needs_work_and_tensor_cores() -> None:
    assert says(asked("fp32_gemm", phase([gemm(100, 90)]))) == "passed: no_fp32_products"
    blind = phase([fp32(100, 80, 20.0) | {"bytes": np.nan, "flops": np.nan}])
    assert says(asked("fp32_gemm", blind)) == "error: work_not_recorded"
    plain = device(gpu=None)
    without = phase([fp32(100, 80, 20.0)], info=device(overrides=_fp32_only(plain)))
    assert says(asked("fp32_gemm", without)) == "not_applicable: no_tensor_cores"


def _fp32_only(info: Any) -> Any:
    return type(info.overrides)(None, {"fp32": 10.0}, 1000.0)


def scores(us: float, first: bool) -> dict[str, Any]:
    # 32 heads, one query, 4000 keys of 128: 32 x (128 + 4000 x 128 + 4000) numbers of 2 bytes.
    m, n, k = (1, 4000, 128) if first else (1, 128, 4000)
    size = 32 * (m * k + k * n + m * n) * 2
    return gemm(us, 0.0, name=6, m=m, n=n, k=k, batch=32, weight_bytes=np.nan, bytes=float(size), flops=0.0)


def softmax(us: float) -> dict[str, Any]:
    return small(us, category="softmax", role="softmax", name=7)


def test_attention_with_a_score_matrix_is_found_and_fused_reads_keys_and_values_once() -> None:
    about = phase([gemm(60, 50), scores(60, True), small(10, name=8), softmax(30), scores(60, False), gemm(60, 50)])
    found = asked("math_attention", about)
    # Keys and values are 2 x 32 x 4000 x 128 x 2 bytes = 65.5 MB, 74.5 us at 880 GB/s, of 160 us.
    assert found.status == "found"
    assert found.saving_ns == pytest.approx((160 - 65.536 / 0.88) * US, rel=0.03)
    assert {touched.name for touched in found.kernels} == {6, 7, 8}


def test_products_of_nothing_tell_no_size_of_an_element() -> None:
    nothing = scores(60, True) | {"m": 0, "n": 0, "k": 0, "bytes": 0.0}
    about = phase([gemm(60, 50), nothing, softmax(30), scores(60, False), gemm(60, 50)])
    assert asked("math_attention", about).status in ("found", "passed", "error")  # a warning of a division would raise


def test_copies_that_repeat_keys_for_every_head_go_with_the_score_matrix() -> None:
    copied = 32 * 4000 * 128 * 2 * 1.25 / 1e6  # written for 32 heads, read from 8
    copies = [small(40, memory=copied, category="copy", role="copy-cast", name=9)] * 2
    about = phase([gemm(60, 50), *copies, scores(60, True), softmax(30), scores(60, False), gemm(60, 50)])
    found = asked("math_attention", about)
    assert found.saving_ns == pytest.approx((230 - 65.536 / 4 / 0.88) * US, rel=0.03)
    assert {touched.name for touched in found.kernels} == {6, 7, 9}


def test_fused_attention_passes_and_no_attention_is_not_applicable() -> None:
    assert says(asked("math_attention", phase([gemm(60, 50), attention(10, 5)]))) == "passed: fused_attention"
    assert says(asked("math_attention", phase([gemm(60, 50)]))) == "not_applicable: no_attention"
    tiny = phase([gemm(900, 800), scores(1, True), softmax(1), scores(1, False)])
    assert says(asked("math_attention", tiny)) == "passed: attention_small"
    nothing = {"bytes": np.nan, "flops": np.nan, "weight_bytes": np.nan, "batch": MISSING}
    blind = phase([gemm(60, 50) | nothing, softmax(20), gemm(60, 50) | nothing])
    assert says(asked("math_attention", blind)) == "error: work_not_recorded"


def test_few_blocks_are_found_and_split_kernels_reach_the_bandwidth() -> None:
    about = phase([gemm(60, 50, blocks=1000), attention(50, 8, blocks=8)])
    found = asked("small_gpu_fill", about)
    assert found.status == "found"
    assert found.saving_ns == pytest.approx((50 - 8 / 0.8) * US, rel=0.03)
    assert {touched.name for touched in found.kernels} == {2}


def test_many_blocks_pass_and_grids_are_needed() -> None:
    assert says(asked("small_gpu_fill", phase([gemm(60, 50, blocks=900), attention(50, 8, blocks=900)]))) == (
        "passed: device_filled"
    )
    assert says(asked("small_gpu_fill", phase([gemm(60, 50), attention(50, 8)]))) == "error: grids_not_recorded"
    assert says(asked("small_gpu_fill", phase([small(5)]))) == "not_applicable: no_matrix_products"


def test_slow_products_on_a_full_device_are_found() -> None:
    about = phase([gemm(100, 20, blocks=900), gemm(50, 45, blocks=900, name=5)])
    found = asked("low_bandwidth_gemm", about)
    assert found.status == "found"
    assert found.saving_ns == pytest.approx((100 - 20 / 0.8) * US, rel=0.03)
    assert {touched.name for touched in found.kernels} == {1}
    fast = phase([gemm(50, 45, blocks=900)])
    assert says(asked("low_bandwidth_gemm", fast)) == "passed: bandwidth_reached"
    assert says(asked("low_bandwidth_gemm", phase([small(3)]))) == "not_applicable: no_matrix_products"
    blind = phase([gemm(100, 20, bytes=np.nan, weight_bytes=np.nan)])
    assert says(asked("low_bandwidth_gemm", blind)) == "error: work_not_recorded"


PROMPT = {"tokens": 512.0, "prefill_tokens": 512.0, "prefill_sequences": 1.0, "decode_tokens": 0.0,
          "decode_sequences": 0.0}  # fmt: skip


def test_a_prefill_far_from_the_peak_is_found() -> None:
    about = phase([gemm(100, 10, compute=40.0, tokens=512)], name="prefill", facts=PROMPT)
    found = asked("prefill_low_mfu", about)
    assert found.status == "found"
    assert found.saving_ns == pytest.approx((100 - 40 / 0.8) * US, rel=0.03)
    fast = phase([gemm(100, 10, compute=70.0, tokens=512)], name="prefill", facts=PROMPT)
    assert says(asked("prefill_low_mfu", fast)) == "passed: peak_reached"
    for us in (0.0, 20.0):  # no time at all, or a fiftieth of what the peak allows
        impossible = phase([gemm(us, 10, 1_000, tokens=512), small(1_000)], name="prefill")
        assert says(asked("prefill_low_mfu", impossible)) == "error: faster_than_possible"
    short = phase([gemm(100, 80, compute=10.0, tokens=16)], name="prefill", facts=PROMPT | {"tokens": 16.0})
    assert says(asked("prefill_low_mfu", short)) == "passed: prompt_below_ridge"
    blind = phase([gemm(100, 80, bytes=np.nan, flops=np.nan)], name="prefill", facts=PROMPT)
    assert says(asked("prefill_low_mfu", blind)) == "error: work_not_recorded"
    assert says(asked("prefill_low_mfu", phase([small(1)], name="prefill"))) == "not_applicable: no_matrix_products"


# ---- the end of a step


def test_a_long_sampler_is_found_and_a_fifth_of_it_is_left() -> None:
    sort = small(20, category="sort_scan", role="sort-scan", name=10)
    draw = small(2, category="sampling", role="sampling", name=11)
    about = phase([gemm(100, 90), small(8, name=12), softmax(10), sort, draw, small(3, name=13)])
    found = asked("lm_head_and_sampling", about)
    assert found.status == "found"
    assert found.saving_ns == pytest.approx(0.8 * 40 * US, rel=0.03)
    assert {touched.name for touched in found.kernels} == {7, 10, 11, 12}


def test_greedy_sampling_passes_and_no_sampling_is_not_applicable() -> None:
    greedy = phase([gemm(100, 90), small(3, category="sampling", role="sampling")])
    assert says(asked("lm_head_and_sampling", greedy)) == "passed: sampling_small"
    assert says(asked("lm_head_and_sampling", phase([gemm(100, 90)]))) == "not_applicable: no_sampling"


def test_logits_of_every_position_are_found_and_one_row_costs_the_weight_at_least() -> None:
    head = gemm(60, 10, compute=50.0, tokens=512, n=50_000, name=5)
    about = phase([gemm(40, 10, compute=30.0, tokens=512)] * 2 + [head], name="prefill", facts=PROMPT)
    found = asked("lm_head_all_positions", about)
    assert found.status == "found"
    assert found.saving_ns == pytest.approx((60 - 60 * 10 / 50) * US, rel=0.05)
    assert {touched.name for touched in found.kernels} == {5}


def test_logits_of_the_last_position_pass() -> None:
    layers = [gemm(40, 10, compute=30.0, tokens=512)] * 2
    last = phase([*layers, gemm(10, 9, n=50_000)], name="prefill", facts=PROMPT)
    assert says(asked("lm_head_all_positions", last)) == "passed: logits_of_last_position"
    none = phase(layers, name="prefill", facts=PROMPT)
    assert says(asked("lm_head_all_positions", none)) == "not_applicable: no_lm_head"
    blind = phase(layers, name="prefill", facts=PROMPT | {"sequences": np.nan})
    assert says(asked("lm_head_all_positions", blind)) == "error: tokens_unknown"


# ---- other devices


@pytest.mark.parametrize(
    ("rule", "name"), [("communication_exposed", "decode"), ("communication_exposed_prefill", "prefill")]
)
def test_exposed_communication_is_found_and_hidden_communication_passes(rule: str, name: str) -> None:
    reduce = kernel(30, category="comm", role="collective", name=14)
    found = asked(rule, phase([gemm(70, 60), reduce], name=name))
    assert found.status == "found"
    assert found.saving_ns == pytest.approx(30 * US, rel=0.03)
    assert {touched.name for touched in found.kernels} == {14}
    short = phase([gemm(97, 90), reduce | {"us": 3}], name=name)
    assert says(asked(rule, short)) == "passed: communication_hidden"
    assert says(asked(rule, phase([gemm(70, 60)], name=name))) == "not_applicable: no_communication"


# ---- all rules


def test_a_saving_that_is_too_small_passes() -> None:
    about = phase([gemm(500, 450), small(60, memory=52), small(60, memory=52), gemm(1, 1)])
    assert asked("unfused_elementwise", about).status == "found"
    tiny = phase([gemm(1000, 900), *[cat(2.5, 0)] * 2, attention(5, 4)], dims=(CACHE,))
    assert says(asked("kv_cat_copies", tiny)) == "passed: saves_too_little"


def test_few_steps_and_unknown_work_lower_the_confidence() -> None:
    many, few = (asked("weights_dominate", phase([gemm(100, 98)], steps=n)) for n in (10, 2))
    assert many.confidence is not None
    assert few.confidence is not None
    assert few.confidence < many.confidence
    assert "few_steps" in {fact.code for fact in few.evidence}
    partly = asked("weights_dominate", phase([gemm(100, 98), small(40, bytes=np.nan)]))
    assert partly.confidence is not None
    assert partly.confidence < many.confidence


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_no_rule_applies_to_a_phase_without_complete_steps(rule: Any) -> None:
    assert says(asked(rule.id, None)) == "not_applicable: no_complete_step"
