"""Attention over a paged cache takes its context from the step's label; closed forms, sequence by sequence."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.analysis.recorded import Recording
from tests.analysis.work.calls import BF16
from traceanalyzer import read_trace
from traceanalyzer.analysis import kernels, steps
from traceanalyzer.analysis.activity import build
from traceanalyzer.analysis.work import fill_attention, measure
from traceanalyzer.trace.tables import KERNEL, MISSING

FLASH = "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cutlass::bfloat16_t>>>"
PLAIN = "fmhaSm100aKernel_QkvBfloat16OBfloat16H128PagedKvCausalP16VarSeqQ128Kv128PersistentContext"
WINDOW = "fmhaSm100aKernel_QkvBfloat16OBfloat16H128PagedKvSlidingOrChunkedCausalP16VarSeqQ128Kv128PersistentContext"
HEADS, KV_HEADS, SIZE = 32, 8, 128
NOTHING = dict.fromkeys(("prefill_tokens", "prefill_sequences", "decode_tokens", "decode_sequences"), 0.0)


def filled(tokens: int, step: dict[str, Any], *kernel_names: str, cache: str = "") -> pd.DataFrame:
    """One attention op of some tokens in a step of which the facts are known."""
    recording = Recording()
    heads = [[tokens, HEADS, SIZE], [tokens, KV_HEADS, SIZE], [tokens, KV_HEADS, SIZE]]
    recording.op("vllm::unified_attention_with_output", 0, 100, [*heads, heads[0], [], [], []], [BF16] * 4 + [""] * 3)
    for number, name in enumerate(kernel_names, 1):
        recording.launch("cudaLaunchKernel", 10 * number, number)
        recording.kernel(name, 1_000 * number, 50, number)
    if cache:
        pool = [9999, 16, KV_HEADS, SIZE]
        recording.op("_C_cache_ops::reshape_and_cache_flash", 200, 300, [heads[1], heads[2], pool, pool, [tokens]],
                     [BF16, BF16, cache, cache, "long int"])  # fmt: skip
    trace = recording.trace()
    found = build(trace)
    work = measure(trace, found, kernels.classes(trace, found))
    assert work["flops"].isna().all()
    facts = {"step": 0, "phase": "decode", "padded_tokens": 0.0, "query_context_sum": nan, **NOTHING, **step}
    return fill_attention(trace, found, work, pd.DataFrame([facts]), np.zeros(len(work), np.int32))


def prompts(*lengths: tuple[int, int]) -> dict[str, Any]:
    """The facts of a prefill of sequences of (queries, keys)."""
    tokens = float(sum(q for q, _ in lengths))
    return {"phase": "prefill", "tokens": tokens, "sequences": float(len(lengths)), "prefill_tokens": tokens,
            "prefill_sequences": float(len(lengths)), "context_sum": float(sum(k for _, k in lengths)),
            "query_context_sum": float(sum(q * k for q, k in lengths))}  # fmt: skip


def moved(tokens: int, keys: int, stored: int = 2) -> float:
    return 2.0 * 2 * tokens * HEADS * SIZE + 2.0 * stored * keys * KV_HEADS * SIZE


def test_decode_reads_every_key_once() -> None:
    step = {"tokens": 3.0, "sequences": 3.0, "decode_tokens": 3.0, "decode_sequences": 3.0, "context_sum": 1000.0}
    table = filled(3, step, FLASH)
    assert table["flops"].tolist() == [4.0 * HEADS * SIZE * 1000]
    assert table["bytes"].tolist() == [moved(3, 1000)]
    assert table["kv_bytes"].tolist() == [2.0 * 2 * 1000 * KV_HEADS * SIZE]
    assert table["source"].tolist() == ["annotation"]
    padded = filled(4, {**step, "padded_tokens": 1.0}, FLASH)
    assert padded["bytes"].tolist() == [moved(4, 1000)]


def test_the_cache_is_read_at_the_size_it_is_stored_in() -> None:
    step = {"tokens": 3.0, "sequences": 3.0, "decode_tokens": 3.0, "decode_sequences": 3.0, "context_sum": 1000.0}
    assert filled(3, step, FLASH, cache="unsigned char")["bytes"].tolist() == [moved(3, 1000, stored=1)]
    assert filled(3, step, FLASH, cache=BF16)["bytes"].tolist() == [moved(3, 1000, stored=2)]


@pytest.mark.parametrize(
    ("lengths", "exact"),
    [([(100, 100)], True), ([(100, 500)], True), ([(100, 100), (40, 40)], True), ([(60, 200), (60, 90)], False)],
)
def test_a_causal_mask_hides_half_a_square_of_each_prompt(lengths: list[tuple[int, int]], exact: bool) -> None:
    tokens, keys = sum(q for q, _ in lengths), sum(k for _, k in lengths)
    table = filled(tokens, prompts(*lengths), PLAIN)
    pairs = sum(q * k - q * q / 2 for q, k in lengths)
    assert table["flops"].tolist() == [4.0 * HEADS * SIZE * pairs]
    assert table["bytes"].tolist() == [moved(tokens, keys)]
    assert table["estimated"].tolist() == [not exact]


def test_a_chunk_beside_decodes_is_halved_alone() -> None:
    step = {"phase": "mixed", "tokens": 103.0, "sequences": 4.0, "prefill_tokens": 100.0, "prefill_sequences": 1.0,
            "decode_tokens": 3.0, "decode_sequences": 3.0, "context_sum": 900.0,
            "query_context_sum": 100.0 * 300 + 600}  # fmt: skip
    table = filled(103, step, FLASH)
    assert table["flops"].tolist() == [4.0 * HEADS * SIZE * (100 * 300 - 100 * 100 / 2 + 600)]
    assert table["estimated"].tolist() == [True]  # the kernel's name tells no mask


def test_a_window_is_known_only_where_every_key_is_a_querys_own() -> None:
    table = filled(100, prompts((100, 100)), WINDOW)
    assert table["flops"].isna().all()
    assert table["bytes"].tolist() == [moved(100, 100)]
    assert filled(100, prompts((100, 300)), WINDOW)["bytes"].isna().all()


@pytest.mark.parametrize(
    "change",
    [{"context_sum": nan}, {"tokens": 7.0}, {"tokens": 400.0}, {"phase": "encoder"}, {"phase": "draft"}],
)
def test_what_the_step_does_not_say_stays_unknown(change: dict[str, Any]) -> None:
    table = filled(100, {**prompts((100, 300)), **change}, FLASH)
    assert table[["flops", "bytes"]].isna().all().all()
    assert table["source"].tolist() == ["none"]


def one_paged_call(
    name: str, dims: list[Any], concrete: list[str], keys: float, types: dict[int, str] | None = None
) -> pd.DataFrame:
    """A decode step of 32 sequences through an op that takes the cache in pages."""
    recording = Recording()
    given = [(types or {}).get(i, BF16 if d else "Scalar") for i, d in enumerate(dims)]
    recording.op(name, 0, 100, dims, given, concrete)
    recording.launch("cudaLaunchKernel", 10, 1)
    recording.kernel("void vllm::paged_attention_v1_kernel<unsigned short, unsigned short, 128, 16>", 1_000, 50, 1)
    trace = recording.trace()
    found = build(trace)
    work = measure(trace, found, kernels.classes(trace, found))
    facts = {"step": 0, "phase": "decode", "padded_tokens": 0.0, "query_context_sum": keys, "context_sum": keys,
             **NOTHING, "tokens": 32.0, "sequences": 32.0, "decode_tokens": 32.0, "decode_sequences": 32.0}  # fmt: skip
    return fill_attention(trace, found, work, pd.DataFrame([facts]), np.zeros(len(work), np.int32))


def test_pages_whose_heads_are_an_argument() -> None:
    pool = [[9000, 8, 16, 16, 8], [9000, 8, 128, 16]]
    table = one_paged_call(
        "_C::paged_attention_v1", [[32, 32, 128], [32, 32, 128], *pool, []], ["", "", "", "", "8"], 5000.0
    )
    assert table["flops"].tolist() == [4.0 * 32 * 128 * 5000]
    assert table["bytes"].tolist() == [2.0 * 2 * 32 * 32 * 128 + 2.0 * 2 * 5000 * 8 * 128]


def test_a_latent_key_is_read_once_for_all_heads_and_as_its_value() -> None:
    dims: list[Any] = [[32, 128, 512], [32, 128, 512], [32, 128, 64], [4096, 128, 576], [32], [32, 64]]
    table = one_paged_call("sgl_kernel::cutlass_mla_decode", dims, [""] * 6, 5000.0)
    assert table["flops"].tolist() == [2.0 * 128 * (576 + 512) * 5000]
    assert table["bytes"].tolist() == [2.0 * 32 * 128 * (576 + 512) + 2.0 * 576 * 5000]


def flash_mla(row: int, stored: str, chosen: list[int], kind: str) -> pd.DataFrame:
    """As recorded by the version that takes indices; `row` numbers of type `stored` are kept per key."""
    dims: list[Any] = [[32, 1, 128, 576], [4096, 64, 1, row], [], [32], [32, 64], [], [], [132, 8], [33], [], chosen]
    concrete = ["", "", "512", "", "", "0.1", "True", "", "", "False", ""]
    types = {1: stored, 3: "int", 4: "int", 10: kind}
    return one_paged_call("_flashmla_C::fwd_kvcache_mla", dims, concrete, 5000.0, types)


def test_flash_mla_reads_rows_of_the_pool_it_is_given() -> None:
    asked = 2.0 * 32 * 128 * (576 + 512)
    plain = flash_mla(576, BF16, [], "")
    assert plain["flops"].tolist() == [2.0 * 128 * (576 + 512) * 5000]
    assert plain["bytes"].tolist() == [asked + 2.0 * 576 * 5000]
    assert plain["kv_bytes"].tolist() == [2.0 * 576 * 5000]
    packed = flash_mla(656, "unsigned char", [], "")  # 512 in fp8, their scales, 64 rotated ones in 16 bits
    assert packed["bytes"].tolist() == [asked + 656.0 * 5000]
    scaled = flash_mla(576, "c10::Float8_e4m3fn", [1], "float")  # the same place holds a scale in another version
    assert scaled["kv_bytes"].tolist() == [576.0 * 5000]


def test_keys_that_an_index_chooses_are_not_counted() -> None:
    assert flash_mla(576, BF16, [32, 1, 2048], "int")[["flops", "bytes", "kv_bytes"]].isna().all().all()


def test_two_attention_kernels_of_one_op_share_what_nobody_knows() -> None:
    table = filled(100, prompts((100, 300)), FLASH, PLAIN)
    assert table["bytes"].isna().all()


def test_a_row_outside_every_step_stays_unknown() -> None:
    recording = Recording()
    heads = [[4, HEADS, SIZE], [4, KV_HEADS, SIZE], [4, KV_HEADS, SIZE]]
    recording.op("vllm::unified_attention", 0, 100, [*heads, []], [BF16] * 3 + [""])
    recording.launch("cudaLaunchKernel", 10, 1)
    recording.kernel(FLASH, 1_000, 50, 1)
    trace = recording.trace()
    found = build(trace)
    work = measure(trace, found, kernels.classes(trace, found))
    after = fill_attention(trace, found, work, pd.DataFrame({"step": []}), np.full(1, MISSING, np.int32))
    assert after["bytes"].isna().all()


def test_a_recorded_prefill_knows_all_but_its_experts(traces: Path) -> None:
    """888 tokens of one prompt through 36 layers, every other one with a window, 8 heads of 64 per rank, cache in fp8.

    Unknown are the experts (49 % of the time), a metadata kernel without an op, and the windowed layers' FLOPs.
    """
    trace = read_trace(traces / "b200-vllm-eager-prefill.json.gz")
    found = build(trace)
    work = measure(trace, found, kernels.classes(trace, found))
    known = steps.find(trace, found, work)
    work = fill_attention(trace, found, work, known.table, known.activity_step)
    table = found.table
    attention = work[work["source"] == "annotation"]
    assert attention["bytes"].tolist() == [888 * 8 * 64 * (1.0 + 2.0) + 888 * 2 * 64] * 36
    assert sorted(attention["flops"].dropna()) == [4.0 * 8 * 64 * 888 * 888 / 2] * 18
    ran = (table["kind"] == KERNEL).to_numpy()
    named = [trace.text(int(trace.ops["name"].iloc[op])) if op >= 0 else "" for op in table["op"]]
    experts = np.array([name == "vllm::moe_forward" for name in named])
    talks = (work["category"] == "comm").to_numpy()
    time = table["duration_ns"].to_numpy()
    assert time[experts].sum() / table["duration_ns"].sum() == pytest.approx(0.49, abs=0.07)
    rest = ran & ~experts & ~talks & work["bytes"].isna().to_numpy()
    assert {trace.text(int(code)) for code in table["name"][rest]} == {"_copy_page_indices_kernel"}
    assert rest.sum() == 2
