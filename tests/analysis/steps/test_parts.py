"""The pieces that can be held against a brute-force answer or a closed form."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceanalyzer.analysis.steps.hints import template_hint
from traceanalyzer.analysis.steps.periodic import layer_period
from traceanalyzer.analysis.steps.sequence import read_order
from traceanalyzer.analysis.steps.submission import SpanMap
from traceanalyzer.trace.tables import MISSING


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Properly nested ranges: a random tree laid out on a line."""
    spans: list[tuple[int, int]] = []

    def place(start: int, room: int, depth: int) -> None:
        count = draw(st.integers(0, 3)) if depth else 0
        width = room // max(count, 1)
        for i in range(count):
            a = start + i * width + draw(st.integers(0, 2))
            b = start + (i + 1) * width - draw(st.integers(0, 2))
            if b > a:
                spans.append((a, b))
                place(a, b - a, depth - 1)

    place(0, 200, 3)
    return spans


@given(nested(), st.lists(st.integers(-5, 205), min_size=1, max_size=40))
def test_innermost_range_against_brute_force(spans, times):
    frame = pd.DataFrame(
        {
            "thread": np.zeros(len(spans), np.int64),
            "start_ns": np.array([a for a, _ in spans], np.int64),
            "end_ns": np.array([b for _, b in spans], np.int64),
            "owner": np.arange(len(spans)),
        }
    )
    found = SpanMap(frame).locate(np.zeros(len(times), np.int64), np.array(times, np.int64))
    for time, owner in zip(times, found.tolist(), strict=True):
        around = [(b - a, -i) for i, (a, b) in enumerate(spans) if a <= time < b]
        expected = -min(around)[1] if around else MISSING
        assert owner == expected or (owner != MISSING and spans[owner] == spans[expected])


def test_threads_do_not_see_each_others_ranges():
    frame = pd.DataFrame({"thread": [1, 2], "start_ns": [0, 5], "end_ns": [10, 15], "owner": [0, 1]})
    found = SpanMap(frame).locate(np.array([1, 2, 1, 2, 3]), np.array([7, 7, 12, 12, 7]))
    assert found.tolist() == [0, 1, MISSING, 1, MISSING]


def test_ranges_that_do_not_nest_end_with_the_one_around():
    """The second range outlasts the first on the same thread; its end is the first one's, and order is kept."""
    count = 20
    starts = np.arange(count) * 20
    frame = pd.DataFrame(
        {
            "thread": 1,
            "start_ns": np.concatenate([starts, starts + 5, starts + 16]),
            "end_ns": np.concatenate([starts + 10, starts + 15, starts + 18]),
            "owner": np.arange(3 * count),
        }
    )
    for i in range(count):
        times = np.array([3, 7, 12, 17]) + 20 * i
        found = SpanMap(frame).locate(np.full(4, 1), times)
        assert found.tolist() == [i, count + i, MISSING, 2 * count + i]


@pytest.mark.parametrize("period", [3, 7, 40])
def test_the_layer_period(period):
    layer = np.arange(period) + 10
    one_pass = np.concatenate([[1, 2], np.tile(layer, 12), [3, 4, 5]])
    assert layer_period(np.tile(one_pass, 5)) == period


def test_no_period_in_noise_or_in_one_name():
    assert layer_period(np.arange(500)) == 0
    assert layer_period(np.zeros(500, np.int64)) == 0
    assert layer_period(np.random.default_rng(1).integers(0, 50, 2000)) == 0


def test_counting_up_a_fixed_cache():
    q, k = np.array([8, 8, 1, 1, 1, 5, 1, 1]), np.array([64] * 8)
    order = read_order(q, k)
    assert order.context.tolist() == [8, 16, 17, 18, 19, 5, 6, 7]
    assert order.padded.all()


def test_a_growing_cache_is_left_alone():
    q, k = np.array([8, 1, 1, 1]), np.array([8, 9, 10, 11])
    order = read_order(q, k)
    assert order.context.tolist() == [8, 9, 10, 11]
    assert not order.padded.any()


def test_two_equal_steps_are_not_a_fixed_cache():
    order = read_order(np.array([1, 1]), np.array([9, 9]))
    assert order.context.tolist() == [9, 9]


def test_unknown_lengths_stay_unknown():
    order = read_order(np.array([MISSING, MISSING, MISSING]), np.array([MISSING, MISSING, MISSING]))
    assert order.context.tolist() == [MISSING] * 3
    assert not order.padded.any()


def test_a_context_beyond_the_cache_is_unknown():
    order = read_order(np.array([60, 3, 1, 1, 1]), np.array([62] * 5))
    assert order.context.tolist() == [60, MISSING, MISSING, MISSING, MISSING]


TRAITS = "Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<128, 64> >"
MAINLOOP = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
    "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1> >, cute::tuple<cute::C<128> >, 128, "
    "cutlass::bfloat16_t, float, cutlass::arch::Sm90, "
)
FLASHINFER = "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)"


def flags(text: str) -> str:
    """t and f spelt out as template arguments."""
    return ", ".join("true" if letter == "t" else "false" for letter in text)


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        (f"void flash::flash_fwd_splitkv_kernel<{TRAITS}, {flags('fffftftf')}>(P)", "decode"),
        (f"void flash::flash_fwd_splitkv_kernel<{TRAITS}, {flags('tffftfff')}>(P)", "prefill"),
        (f"void pytorch_flash::flash_fwd_kernel<{TRAITS}, {flags('ftffftf')}>(P)", "prefill"),
        (f"void pytorch_flash::flash_fwd_kernel<{TRAITS}, {flags('ffffftf')}>(P)", ""),
        (f"{MAINLOOP}{flags('tffttfffttff')}>, E>>(P)", "prefill"),
        (f"{MAINLOOP}{flags('fffttffftttf')}>, E>>(P)", "decode"),
        (f"{MAINLOOP}{flags('fffttfffttff')}>, E>>(P)", ""),
        (f"{FLASHINFER}0, 16u, 1u>>", "decode"),
        (f"{FLASHINFER}1, 128u, 1u>>", "prefill"),
        (f"{FLASHINFER}1, 64u, 1u>>", ""),
        ("ampere_sgemm_128x32_tn", ""),
    ],
)
def test_what_kernel_templates_say(name, phase):
    assert template_hint(name) == phase
