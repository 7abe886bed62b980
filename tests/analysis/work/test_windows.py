"""Sliding windows in attention over a cache: pairs counted one by one, and which layers have a window at all."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.analysis.recorded import Recording
from tests.analysis.work.calls import BF16
from traceanalyzer.analysis import kernels
from traceanalyzer.analysis.activity import build
from traceanalyzer.analysis.work import fill_attention, measure

FLASH = "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cutlass::bfloat16_t>>>"
PLAIN = "fmhaSm100aKernel_QkvBfloat16OBfloat16H128PagedKvCausalP16VarSeqQ128Kv128PersistentContext"
WINDOW = "fmhaSm100aKernel_QkvBfloat16OBfloat16H128PagedKvSlidingOrChunkedCausalP16VarSeqQ128Kv128PersistentContext"
HEADS, KV_HEADS, SIZE = 32, 8, 128
PAIR = 4.0 * HEADS * SIZE


def filled(
    lengths: Sequence[tuple[int, int]], phase: str, names: Sequence[str], windows: Sequence[int | None], **more: Any
) -> pd.DataFrame:
    """A step of sequences of (queries, keys) with one attention call per kernel name."""
    recording, tokens = Recording(), sum(q for q, _ in lengths)
    heads = [[tokens, HEADS, SIZE], [tokens, KV_HEADS, SIZE], [tokens, KV_HEADS, SIZE]]
    for number, name in enumerate(names, 1):
        recording.op("vllm::unified_attention_with_output", 100 * number, 100 * number + 90,
                     [*heads, heads[0], [], [], []], [BF16] * 4 + [""] * 3)  # fmt: skip
        recording.launch("cudaLaunchKernel", 100 * number + 10, number)
        recording.kernel(name, 1_000 * number, 50, number)
    trace = recording.trace()
    found = build(trace)
    work = measure(trace, found, kernels.classes(trace, found))
    prompts = [(q, k) for q, k in lengths if q > 1]
    decodes = len(lengths) - len(prompts)
    facts = {
        "step": 0, "phase": phase, "padded_tokens": 0.0, "tokens": float(tokens), "sequences": float(len(lengths)),
        "prefill_tokens": float(sum(q for q, _ in prompts)), "prefill_sequences": float(len(prompts)),
        "decode_tokens": float(decodes), "decode_sequences": float(decodes),
        "context_sum": float(sum(k for _, k in lengths)), "query_context_sum": float(sum(q * k for q, k in lengths)),
        **more,
    }  # fmt: skip
    return fill_attention(trace, found, work, pd.DataFrame([facts]), np.zeros(len(work), np.int32), windows)


def counted(lengths: Sequence[tuple[int, int]], window: int | None) -> float:
    """Pairs seen one by one; of several queries the one on the diagonal counts half."""
    total = 0.0
    for q, k in lengths:
        for position in range(k - q, k):
            seen = min(position + 1, window or k)
            total += seen - (0.5 if q > 1 else 0.0)
    return total


def read(lengths: Sequence[tuple[int, int]], window: int | None) -> float:
    """Keys that at least one query sees."""
    return float(sum(min(k, window - 1 + q) if window else k for q, k in lengths))


@pytest.mark.parametrize(
    ("lengths", "phase"),
    [
        ([(1, 500)], "decode"),
        ([(1, 50)], "decode"),
        ([(1, 500)] * 3, "decode"),
        ([(300, 300)], "prefill"),
        ([(100, 300)], "prefill"),
        ([(4, 300)], "decode"),
        ([(90, 400), (90, 400)], "prefill"),
        ([(100, 400), (1, 250), (1, 250)], "mixed"),
    ],
)
def test_every_other_layer_looks_through_a_window(lengths: list[tuple[int, int]], phase: str) -> None:
    """Gemma and gpt-oss alternate; nothing but the model tells which calls of a general kernel have a window."""
    if phase == "decode" and lengths[0][0] > 1:  # a step that checks a draft: its tokens are the decodes'
        more = {"prefill_tokens": 0.0, "prefill_sequences": 0.0, "decode_tokens": 4.0, "decode_sequences": 1.0}
    else:
        more = {}
    table = filled(lengths, phase, [FLASH] * 4, [128, None, 128, None], **more)
    assert table["flops"].tolist() == pytest.approx([PAIR * counted(lengths, one) for one in (128, None, 128, None)])
    tokens = sum(q for q, _ in lengths)
    assert table["bytes"].tolist() == [
        2.0 * 2 * tokens * HEADS * SIZE + 2.0 * 2 * KV_HEADS * SIZE * read(lengths, one)
        for one in (128, None, 128, None)
    ]
    assert table["source"].tolist() == ["model-config", "annotation"] * 2
    assert table["estimated"].iloc[0] == (len(lengths) > 1)


def test_a_name_that_says_window_takes_the_models_only_width() -> None:
    table = filled([(100, 300)], "prefill", [WINDOW], [128] * 7)
    assert table["flops"].tolist() == [PAIR * counted([(100, 300)], 128)]


@pytest.mark.parametrize(
    ("names", "windows"),
    [
        ([FLASH] * 3, [128, None, 128, None]),  # another number of layers: nothing is taken from the model
        ([PLAIN, WINDOW, FLASH, FLASH], [128, None, 128, None]),  # the names say the opposite of the model
        ([FLASH] * 4, []),
    ],
)
def test_a_model_that_does_not_fit_is_not_used(names: list[str], windows: list[int | None]) -> None:
    table = filled([(100, 300)], "prefill", names, windows)
    whole = [PAIR * counted([(100, 300)], None) if name != WINDOW else PAIR * counted([(100, 300)], 128)
             for name in names]  # fmt: skip
    assert table["flops"].tolist() == whole
    general = np.array([name == FLASH for name in names])
    assert table["estimated"][general].all()  # a window that nothing tells would make the figure too high


def test_sequences_that_are_not_told_apart_leave_a_window_unknown() -> None:
    table = filled([(100, 400), (1, 250)], "mixed", [FLASH] * 2, [128, None], query_context_sum=nan)
    assert table["flops"].isna().tolist() == [True, True]
    assert table["bytes"].notna().tolist() == [False, True]


CONTEXT = "fmhaSm100aKernel_QkvBfloat16OBfloat16H128PagedKvCausalP16VarSeqQ128Kv128PersistentContext"
GENERATION = "fmhaSm100aKernel_QkvBfloat16OBfloat16H128PagedKvDenseP16MultiCtasKvVarSeqQ16Kv128StaticSwapsAbForGen"
FLASHINFER = (
    "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)1, 128>>"
)
FLASHINFER_DECODE = "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2, 4, 8, 16>"


def halves(names: Sequence[str], lengths: Sequence[tuple[int, int]], windows: Sequence[int | None]) -> pd.DataFrame:
    """A mixed step whose only attention call runs two kernels."""
    recording, tokens = Recording(), sum(q for q, _ in lengths)
    shapes: list[Any] = [
        [tokens, HEADS, SIZE],
        [tokens, KV_HEADS, SIZE],
        [tokens, KV_HEADS, SIZE],
        [tokens, HEADS, SIZE],
    ]
    recording.op("vllm::unified_attention_with_output", 0, 900, [*shapes, []], [BF16] * 4 + [""])
    for number, name in enumerate(names, 1):
        recording.launch("cudaLaunchKernel", 100 * number, number)
        recording.kernel(name, 1_000 * number, 50, number)
    trace = recording.trace()
    found = build(trace)
    work = measure(trace, found, kernels.classes(trace, found))
    prompts = [(q, k) for q, k in lengths if q > 1]
    facts = {
        "step": 0, "phase": "mixed", "padded_tokens": 0.0, "tokens": float(tokens), "sequences": float(len(lengths)),
        "prefill_tokens": float(sum(q for q, _ in prompts)), "prefill_sequences": float(len(prompts)),
        "decode_tokens": float(len(lengths) - len(prompts)), "decode_sequences": float(len(lengths) - len(prompts)),
        "context_sum": float(sum(k for _, k in lengths)), "query_context_sum": float(sum(q * k for q, k in lengths)),
    }  # fmt: skip
    return fill_attention(trace, found, work, pd.DataFrame([facts]), np.zeros(len(work), np.int32), windows)


@pytest.mark.parametrize("names", [(CONTEXT, GENERATION), (FLASHINFER, FLASHINFER_DECODE)])
@pytest.mark.parametrize("window", [None, 128])
def test_a_chunk_and_the_decodes_beside_it_have_kernels_of_their_own(
    names: tuple[str, str], window: int | None
) -> None:
    chunk, decodes = [(200, 900)], [(1, 700)] * 3
    if window:
        names = (
            names[0].replace("Causal", "SlidingOrChunkedCausal"),
            names[1].replace("Dense", "SlidingOrChunkedCausal"),
        )
    table = halves(names, [*chunk, *decodes], [window] if window else [])
    assert table["flops"].tolist() == pytest.approx([PAIR * counted(chunk, window), PAIR * counted(decodes, window)])
    per_token, per_key = 2.0 * 2 * HEADS * SIZE, 2.0 * 2 * KV_HEADS * SIZE
    assert table["bytes"].tolist() == pytest.approx(
        [200 * per_token + read(chunk, window) * per_key, 3 * per_token + read(decodes, window) * per_key]
    )
    swapped = halves(names[::-1], [*chunk, *decodes], [window] if window else [])
    assert swapped["flops"].tolist() == table["flops"].tolist()[::-1]


def test_two_kernels_whose_names_tell_nothing_apart_stay_unknown() -> None:
    table = halves((FLASHINFER, FLASHINFER), [(200, 900), (1, 700)], [])
    assert table[["flops", "bytes"]].isna().all().all()
