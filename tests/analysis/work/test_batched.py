"""Weights of batched products: latent attention's, by its place and its size; never a cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from tests.analysis.recorded import Recording
from tests.analysis.work.calls import BF16
from traceanalyzer.analysis import kernels
from traceanalyzer.analysis.activity import build
from traceanalyzer.analysis.work import fill_weights, measure

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_cublas"
MLA = "void flash::flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8>, true>(Params)"
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>(int)"
INTO, BACK = (128, 512), (512, 128)
"""From the head's own numbers to the latent ones, and back."""

Call = str | tuple[int, tuple[int, int]]


def weights(steps: Sequence[tuple[float, Sequence[Call]]], tokens: int = 4) -> list[list[float]]:
    """Weight bytes of each kernel of some decode steps, which are (context sum, calls): a kernel's name, or a batched
    product of so many rows per head, 16 heads, with a (k, n) operand."""
    recording, now, step = Recording(), 0, []
    for number, (_, calls) in enumerate(steps):
        for call in calls:
            now += 100
            if isinstance(call, tuple):
                rows, (k, n) = call
                recording.op("aten::bmm", now, now + 50, [[16, rows, k], [16, k, n]], [BF16, BF16])
            else:
                recording.op("some::op", now, now + 50, [[1]], [BF16])
            recording.launch("cudaLaunchKernel", now + 10, now)
            recording.kernel(GEMM if isinstance(call, tuple) else call, now + 20, 50, now)
            step.append(number)
    trace = recording.trace()
    found = build(trace)
    work = measure(trace, found, kernels.classes(trace, found))
    facts = {"tokens": float(tokens), "decode_tokens": float(tokens)}
    table = pd.DataFrame([{"step": i, "context_sum": context, **facts} for i, (context, _) in enumerate(steps)])
    placed = np.array(step, np.int32)
    after = fill_weights(trace, found, work, table, placed)
    assert after.drop(columns="weight_bytes").equals(work.drop(columns="weight_bytes"))
    return [after["weight_bytes"][placed == i].tolist() for i in range(len(steps))]


def layer(rows: int = 4) -> list[Call]:
    return [(rows, INTO), MLA, (rows, BACK)]


EACH = 2.0 * 16 * 128 * 512
UNKNOWN = [pytest.approx(np.nan, nan_ok=True)] * 3


def test_the_products_around_latent_attention_multiply_by_weights() -> None:
    found = weights([(400.0, layer()), (404.0, layer())])
    assert [[step[0], step[2]] for step in found] == [[EACH, EACH], [EACH, EACH]]
    assert np.isnan([step[1] for step in found]).all()


def test_one_context_alone_tells_nothing() -> None:
    assert weights([(400.0, layer())]) == [UNKNOWN]
    assert weights([(400.0, layer()), (400.0, layer())]) == [UNKNOWN, UNKNOWN]


def test_products_whose_rows_are_not_the_tokens_stay_unknown() -> None:
    assert weights([(400.0, layer(rows=3)), (404.0, layer(rows=3))]) == [UNKNOWN, UNKNOWN]


def test_an_operand_that_grows_with_the_context_is_a_cache() -> None:
    found = weights([(n, [(1, (64, int(n))), MLA, (1, (int(n), 64))]) for n in (100.0, 101.0)], tokens=1)
    assert found == [UNKNOWN, UNKNOWN]


def test_attention_without_fusion_over_a_buffer_of_one_size_is_no_weight() -> None:
    eager: list[Call] = [(1, (64, 2048)), SOFTMAX, (1, (2048, 64))]
    assert weights([(100.0, eager), (101.0, eager)], tokens=1) == [UNKNOWN, UNKNOWN]
    beside = [*eager, MLA]
    assert weights([(100.0, beside), (101.0, beside)], tokens=1) == [[*UNKNOWN, UNKNOWN[0]]] * 2
    # Where the softmax is not known for one, more products than attention kernels can account for are not believed.
    unseen: list[Call] = [(1, (64, 2048)), (1, (2048, 64))] * 2
    assert weights([(100.0, [*unseen, MLA]), (101.0, [*unseen, MLA])], tokens=1) == [[*UNKNOWN, *UNKNOWN[:2]]] * 2
