"""The decode floor by math, with a range of experts, and the slope of a step over its context."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.analysis.lines import BYTES_PER_NS, FLOPS_PER_NS, line, told
from traceanalyzer.analysis import floor, request
from traceanalyzer.analysis.timeline import Timeline

PRODUCT = {"category": "gemm", "role": "g", "tensor_core": 1, "dtype": "bf16"}


def product(
    start: int, duration: int, step: int, compute_ns: float, memory_ns: float, **more: object
) -> dict[str, object]:
    size = memory_ns * BYTES_PER_NS
    return {"start": start, "duration": duration, "step": step, **PRODUCT, "flops": compute_ns * FLOPS_PER_NS,
            "bytes": size, "weight_bytes": size, **more}  # fmt: skip


def test_math_that_takes_longer_than_bytes_is_the_floor() -> None:
    timeline = line([product(0, 200, 0, 90, 40)], steps=[{"phase": "decode", "start": 0, "end": 200}])
    found = floor.decode_floor(timeline)
    assert found is not None
    assert (found.bytes_ns, found.compute_ns, found.floor_ns) == (40, 90, 90)
    assert found.floor_achievable_ns == 90
    assert found.ratio == pytest.approx(200 / 90)
    assert "math_longer_than_bytes" in found.assumptions


def test_math_of_one_row_counts_at_the_peak_of_tensor_cores() -> None:
    # fp32 on the vector units has a tenth of the peak; in bf16 the tensor cores are 10 times as fast.
    row = product(0, 200, 0, 30, 40, tensor_core=0)
    found = floor.decode_floor(line([row], steps=[{"phase": "decode", "start": 0, "end": 200}]))
    assert found is not None
    assert found.compute_ns == 30


def test_unknown_math_leaves_the_floor_of_the_bytes() -> None:
    row = product(0, 200, 0, 30, 40, flops=np.nan)
    found = floor.decode_floor(line([row], steps=[{"phase": "decode", "start": 0, "end": 200}]))
    assert found is not None
    assert (found.compute_ns, found.floor_ns) == (None, 40)


def test_experts_give_a_range() -> None:
    built = line(
        [product(0, 100, 0, 1, 40, category="moe"), product(100, 100, 0, 1, 20)],
        steps=[{"phase": "decode", "start": 0, "end": 200}],
    )
    ranged = built.table.assign(weight_bytes_min=[8e3, np.nan], weight_bytes_max=[64e3, np.nan])
    found = floor.decode_floor(replace(built, table=ranged))
    assert found is not None
    assert (found.weight_bytes_min, found.weight_bytes, found.weight_bytes_max) == (28e3, 60e3, 84e3)
    assert "experts_drawn_evenly" in found.assumptions
    sure = floor.decode_floor(built)
    assert sure is not None
    assert sure.weight_bytes_min is None
    assert found.confidence < sure.confidence


def eager(keys: int, recorder: bool = True, **between: object) -> Timeline:
    """A decode step of two sequences of 100 tokens each, whose attention is two batched products over `keys`."""
    attends = {"weight_bytes": np.nan, "batch": 16}
    rows = [
        product(0, 100, 0, 1, 40, n=512, k=512, batch=1),
        product(100, 10, 0, 1, 4, n=keys, k=64, **attends),
        {"start": 110, "duration": 5, "step": 0, "category": "softmax", "n": -1, "k": -1, **between},
        product(115, 10, 0, 1, 4, n=64, k=keys, **attends),
    ]
    steps = [{"phase": "decode", "start": 0, "end": 130, "sequences": 2, "context_sum": 200}]
    sizes = [{name: row[name] for name in ("n", "k")} for row in rows]
    built = line([{key: value for key, value in row.items() if key not in ("n", "k")} for row in rows], steps=steps)
    joined = replace(built, table=built.table.join(pd.DataFrame(sizes)))
    return told(joined, {"kv_bytes_per_token": 30} if recorder else None)


def test_attention_in_batched_products_reads_the_cache_that_is_kept() -> None:
    for keys in (100, 2048):  # as many as there are, or a buffer
        found = floor.decode_floor(eager(keys))
        assert found is not None
        assert found.kv_bytes == 30 * 200
        assert found.bytes_ns == pytest.approx((40 * BYTES_PER_NS + 30 * 200) / BYTES_PER_NS)
        assert "kv_read_is_kept" in found.assumptions
        assert "kv_unknown" not in found.assumptions


def test_a_window_a_fused_kernel_or_an_unknown_cache_leave_the_kv_bytes_unknown() -> None:
    windowed, fused = eager(80), eager(100, category="attention", role="decode")
    for timeline in (windowed, fused, eager(100, recorder=False)):
        found = floor.decode_floor(timeline)
        assert found is not None
        assert found.kv_bytes is None
        assert "kv_unknown" in found.assumptions


def growing(extra: list[int], sequences: list[float] | None = None) -> Timeline:
    """Steps of 1000 ns of products, plus `extra`, and attention of 100 ns and 10 ns per 1,000 tokens of context."""
    rows, steps, at = [], [], 0
    for i, more in enumerate(extra):
        attention = 100 + 10 * i
        rows += [
            product(at, 1000 + more, i, 1, 9),
            {"start": at + 1000 + more, "duration": attention, "step": i, "category": "attention", "kv_bytes": 1.0},
        ]
        end = at + 1000 + more + attention
        count = sequences[i] if sequences else np.nan
        steps.append({"phase": "decode", "start": at, "end": end, "context_sum": 1000 * (i + 1), "sequences": count})
        at = end
    return line(rows, steps=steps)


def slope(timeline: Timeline) -> float | None:
    return floor.context_slope(timeline, timeline.complete_steps)


def test_a_clean_slope_is_that_of_the_whole_step() -> None:
    assert slope(growing([20 * i for i in range(6)])) == pytest.approx(30)


def test_attention_alone_shows_the_slope_that_noise_hides() -> None:
    assert slope(growing([0, 400, 50, 380, 20, 350, 10, 300])) == pytest.approx(10)


def test_steps_of_other_batches_do_not_bend_the_slope() -> None:
    counts = [1.0] * 4 + [2.0] * 4
    assert slope(growing([0] * 4 + [5000] * 4, counts)) == pytest.approx(10)


def test_three_steps_are_too_few() -> None:
    assert slope(growing([0, 0, 0])) is None


def test_a_decode_step_is_a_share_of_a_whole_prefill_for_several_requests() -> None:
    phases = [("prefill", 1, 512), ("decode", 1, 1), ("prefill", 1, 512), ("decode", 2, 2), ("decode", 2, 2)]
    rows, steps = [], []
    for i, (phase, sequences, tokens) in enumerate(phases):
        rows.append(product(100 * i, 60, i, tokens, 5))
        counts = {f"{phase}_tokens": tokens, "sequences": sequences, "tokens": tokens, "context_sum": tokens}
        steps.append({"phase": phase, "start": 100 * i, "end": 100 * i + 60, **counts})
    found = request.view(line(rows, steps=steps))
    assert found is not None
    assert found.input_tokens is None
    assert found.decode_over_prefill_flops == pytest.approx(1 / 512)
    steps[2]["context_sum"] = 4_096  # a chunk, or a cached prefix: no whole prefill
    found = request.view(line(rows, steps=steps))
    assert found is not None
    assert found.decode_over_prefill_flops is None
