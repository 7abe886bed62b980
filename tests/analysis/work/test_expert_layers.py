"""Experts behind an op that hides them: closed forms from the model's public sizes, and what makes it stay unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.analysis.recorded import Recording
from tests.analysis.work.calls import BF16
from traceanalyzer import read_trace
from traceanalyzer.analysis import kernels
from traceanalyzer.analysis.activity import build
from traceanalyzer.analysis.pipeline import analyze
from traceanalyzer.analysis.work import KnownModel, fill_experts, measure
from traceanalyzer.catalog import models
from traceanalyzer.trace.tables import Metadata

UP = ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_schedP2x1x2x3"
      "_biasM_bN_tma_tmaOpt_clmp_swiGlu_dynBatch_sm100f")  # fmt: skip
DOWN = ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_sched"
        "P2x1x2x3_biasM_bN_tmaOpt_clmp_dynBatch_sm100f")  # fmt: skip
QUANTISE = "void tensorrt_llm::kernels::quantize_with_block_size<(tensorrt_llm::BlockScaleQuantizationType)2, bf16, 32>"
SUM = "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<bfloat16_t, 4, true> >"
TRITON = "fused_moe_kernel"
GPT_OSS = KnownModel(models.find("gpt-oss-120b"), 8, 4.25)
TOKENS, HIDDEN, STORED, EXPERTS, CHOSEN = 888, 2880, 3072, 128, 4


def layer(
    known: KnownModel | None, ran: Sequence[tuple[str, int]], *, hidden: int = STORED, experts: int = EXPERTS,
    chosen: int | None = CHOSEN, tokens: int = TOKENS, world: int = 1, name: str = "vllm::moe_forward",
) -> pd.DataFrame:  # fmt: skip
    """One call that launches some kernels of (name, grid x)."""
    recording = Recording()
    recording.op(name, 0, 100, [[tokens, hidden], [tokens, experts], []], [BF16, BF16, ""])
    if chosen is not None:
        recording.op("aten::empty", 1, 2, [[], [], [], [], [], []], ["ScalarList", "Scalar", "", "", "Scalar", ""],
                     [f"[{tokens}, {chosen}]", "3", "", "", "False", ""])  # fmt: skip
    for number, (kernel, grid) in enumerate(ran, 1):
        recording.launch("cuLaunchKernelEx", 10 * number, number)
        recording.kernel(kernel, 1_000 * number, 50, number, grid_x=grid, grid_y=9, grid_z=1)
    trace = replace(recording.trace(), metadata=Metadata(devices=recording.devices, world_size=world))
    found = build(trace)
    work = measure(trace, found, kernels.classes(trace, found))
    assert work["flops"].isna().all()
    return fill_experts(trace, found, work, known)


def even(experts: int, chosen: int, tokens: int) -> float:
    return experts * (1 - (1 - chosen / experts) ** tokens)


def test_generated_kernels_multiply_the_models_numbers_and_read_what_is_stored() -> None:
    """A rank of eight holds 360 of an expert's 2880 columns, stored as 512; mxfp4 is 4 bits and 8 for every 32."""
    table = layer(GPT_OSS, [(QUANTISE, 740), (UP, 8), (DOWN, 24), (SUM, 888)])
    assert table["flops"].tolist() == [
        2.0 * TOKENS * STORED,
        2.0 * TOKENS * CHOSEN * HIDDEN * 2 * 360,
        2.0 * TOKENS * CHOSEN * HIDDEN * 360,
        2.0 * TOKENS * CHOSEN * STORED,
    ]
    active = even(EXPERTS, CHOSEN, TOKENS)
    mxfp8, up, down = 1 + 1 / 32, STORED * 1024 * 4.25 / 8, STORED * 512 * 4.25 / 8
    expected = [
        TOKENS * STORED * (2 + mxfp8),
        TOKENS * STORED * mxfp8 + TOKENS * CHOSEN * 512 * mxfp8 + active * up,
        TOKENS * CHOSEN * 512 * mxfp8 + TOKENS * CHOSEN * STORED * 2 + active * down,
        TOKENS * (CHOSEN + 1) * STORED * 2,
    ]
    assert table["bytes"].tolist() == pytest.approx(expected)
    products = table.iloc[1:3]
    assert products["weight_bytes_min"].tolist() == [CHOSEN * up, CHOSEN * down]
    assert products["weight_bytes_max"].tolist() == [EXPERTS * up, EXPERTS * down]
    assert products["dtype"].tolist() == ["fp8", "fp8"]  # the wider of the operands: mixed products run at its rate
    assert products["estimated"].all()
    assert table["source"].tolist() == ["shapes", "model-config", "model-config", "shapes"]


def test_few_tokens_take_few_experts() -> None:
    table = layer(GPT_OSS, [(UP, 8), (DOWN, 24)], tokens=2)
    up = STORED * 1024 * 4.25 / 8
    assert table["weight_bytes_min"].iloc[0] == CHOSEN * up
    assert table["weight_bytes"].iloc[0] == pytest.approx(even(EXPERTS, CHOSEN, 2) * up)
    assert table["weight_bytes_max"].iloc[0] == 2 * CHOSEN * up


def test_whole_experts_per_rank_show_in_the_grid() -> None:
    """With 16 whole experts on each of eight ranks the product up has 2 x 2880 rows, and an eighth of the pairs."""
    table = layer(GPT_OSS, [(UP, 2 * 3072 // 128), (DOWN, 24)])
    assert table["flops"].iloc[0] == 2.0 * TOKENS * CHOSEN / 8 * HIDDEN * 2 * HIDDEN
    assert table["weight_bytes_max"].iloc[0] == 16 * STORED * 2 * 3072 * 4.25 / 8
    assert table["weight_bytes_min"].iloc[0] == 0


def test_kernels_of_no_special_name_take_sizes_and_bits_from_the_model() -> None:
    """Mixtral in bf16, its intermediate result not activated in the product: 2 x 14336 numbers are written."""
    known = KnownModel(models.find("mixtral-8x7b"), 2, 16.0)
    table = layer(known, [(TRITON, 77), (TRITON, 55)], hidden=4096, experts=8, chosen=None, tokens=64, world=2)
    f = 14336 // 2
    assert table["flops"].tolist() == [2.0 * 128 * 4096 * 2 * f, 2.0 * 128 * 4096 * f]
    active = even(8, 2, 64)
    assert table["bytes"].tolist() == pytest.approx([
        2 * (64 * 4096 + 128 * 2 * f + active * 4096 * 2 * f), 2 * (128 * f + 128 * 4096 + active * 4096 * f),
    ])  # fmt: skip
    assert table["source"].tolist() == ["model-config"] * 2


def test_without_a_model_the_grid_tells_the_width() -> None:
    table = layer(None, [(UP, 8), (DOWN, 24)])
    assert table["flops"].tolist() == [2.0 * TOKENS * CHOSEN * STORED * 1024, 2.0 * TOKENS * CHOSEN * STORED * 512]
    assert table["source"].tolist() == ["grid", "grid"]


@pytest.mark.parametrize(
    ("known", "change"),
    [
        (GPT_OSS, {"experts": 64}),
        (GPT_OSS, {"chosen": 2}),
        (GPT_OSS, {"hidden": 4096}),
        (GPT_OSS, {"hidden": 2048}),
        (GPT_OSS, {"ran": [(UP, 16), (DOWN, 24)]}),
        (GPT_OSS, {"ran": [(UP, 8)]}),
        (GPT_OSS, {"ran": [(UP, 8), (UP, 8), (DOWN, 24), (DOWN, 24)]}),
        (GPT_OSS, {"name": "mine::moe_forward"}),
        (KnownModel(models.find("llama-3.1-8b"), 1, 16.0), {}),
        (None, {"chosen": None}),
        (None, {"world": 8}),
        (None, {"ran": [(TRITON, 8), (TRITON, 24)]}),
        (None, {"ran": [(UP.replace("_t128x", "_t0x"), 8), (DOWN, 24)]}),
        (None, {"ran": [(UP.replace("_t128x", f"_t{'9' * 5000}x"), 8), (DOWN, 24)]}),
    ],
)
def test_what_does_not_fit_stays_unknown(known: KnownModel | None, change: dict[str, Any]) -> None:
    table = layer(known, **{"ran": [(UP, 8), (DOWN, 24)], **change})
    assert table[["flops", "bytes"]].isna().all().all()
    assert set(table["source"]) == {"none"}


def test_a_recorded_prefill_of_experts_is_known_by_nine_tenths(traces: Path) -> None:
    """gpt-oss-120b, recognised by its shape, on one of eight ranks: 888 tokens of one prompt."""
    analysis = analyze([read_trace(traces / "b200-vllm-eager-prefill.json.gz")])
    table = analysis.main.timeline.table
    reduces = table[[analysis.traces[0].text(int(code)).find("multimem_all_reduce") >= 0 for code in table["name"]]]
    assert set(reduces["category"]) == {"comm"}
    assert reduces[["flops", "bytes"]].isna().all().all()
    assert reduces["duration_ns"].sum() / table["duration_ns"].sum() == pytest.approx(0.18, abs=0.01)
    (prefill,) = analysis.main.phases
    assert prefill.flops_known_share is not None and prefill.flops_known_share > 0.9
    assert prefill.bytes_known_share is not None and prefill.bytes_known_share > 0.9
    experts = table[table["role"] == "expert-gemm"]
    assert experts["flops"].sum() == 36 * 6.0 * 888 * 4 * 2880 * 360
    windowed = 128 * 129 / 2 + (888 - 128) * 128 - 888 / 2  # the diagonal counts half
    causal = 888 * 888 / 2
    attention = table[table["category"] == "attention"]["flops"].dropna()
    assert sorted(set(attention)) == [4.0 * 8 * 64 * windowed, 4.0 * 8 * 64 * causal]
    assert len(attention) == 36
