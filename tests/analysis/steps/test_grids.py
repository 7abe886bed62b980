"""Launch grids: what each known kernel's grid counts, and names that lie."""

from __future__ import annotations

import pytest

from tests.analysis.steps.factory import Recording
from tests.analysis.steps.test_unlabelled import FA2
from traceanalyzer.analysis.steps import find, grids
from traceanalyzer.trace.tables import MISSING

TRAITS = (
    "Flash_fwd_kernel_traits<128, {rows}, 128, 4, false, false, cutlass::half_t, Kernel_traits<128, {rows}, 128, 4> >"
)
WHOLE = (
    "void flash::flash_fwd_kernel<"
    + TRAITS.format(rows=128)
    + ", false, {causal}, false, false, false, true, false>(P)"
)
SPLITKV = (
    "void flash::flash_fwd_splitkv_kernel<" + TRAITS.format(rows=64) + ", {causal}, false, false, false, true, false, "
    "{split}, false>(P)"
)
WRITE = "void vllm::reshape_and_cache_flash_kernel<__half, __half, (vllm::Fp8KVCacheDataType)0>(P)"
INDUCTOR = "triton_poi_fused_flash_attention_decode_moe_topk_prefill_3"


class Gridded(Recording):
    """A recording whose kernels have a whole grid."""

    def gridded(self, category: str, name: str, x: int, y: int = 1, **place: int) -> None:
        self.kernel(category, name, grid_x=x, **place)
        self.kernels[-1] |= {"grid_y": y, "grid_z": 8}


def steps(*passes: tuple[int, str, int, int], lies: str = "", logits: int = MISSING, layers: int = 3):
    """Passes of (tokens, attention kernel, its grid's x and y), looked up and sampled."""
    r = Gridded()
    for tokens, attention, x, y in passes:
        r.kernel("embedding", "gather")
        for _ in range(layers):
            r.kernel("gemm", "product")
            r.gridded("kv_cache", WRITE, tokens)
            r.gridded("attention", attention, x, y)
            r.kernel("gemm", "product")
            if lies:
                r.kernel("fused_triton", lies)
        if logits != MISSING:
            r.gridded("embedding", "void at::native::vectorized_gather_kernel<16, long>(P)", logits)
        r.kernel("gemm", "product")
        r.kernel("sampling", "argmax")
    return find(*r.build()).table


def counted(table):
    return table[["phase", "tokens", "sequences"]].to_numpy().tolist()


def test_flash_attention_counts_sequences():
    prompt = WHOLE.format(causal="true")
    table = steps((512, prompt, 2, 2), *[(2, WHOLE.format(causal="false"), 1, 2)] * 3)
    assert counted(table) == [["prefill", 512, 2]] + [["decode", 2, 2]] * 3


def test_the_kernel_with_split_keys_counts_splits_and_no_sequences():
    """8 splits are not 8 sequences, so that 8 tokens are not one each; its flags still say that it decodes."""
    table = steps(*[(8, SPLITKV.format(causal="false", split="true"), 1, 8)] * 3)
    assert counted(table) == [["decode", 8, 8]] * 3
    assert not any("sequences" in text for texts in table["evidence"] for text in texts)
    table = steps(*[(8, SPLITKV.format(causal="true", split="true"), 1, 8)] * 3)
    assert table["sequences"].isna().all()


def test_more_than_one_block_of_queries_is_no_decoding():
    table = steps(*[(300, SPLITKV.format(causal="true", split="false"), 5, 1)] * 3)
    assert counted(table) == [["prefill", 300, 1]] * 3


def test_paged_attention_counts_sequences_on_its_second_axis():
    name = "void vllm::paged_attention_v1_kernel<unsigned short, unsigned short, 128, 16, 128>(P)"
    table = steps(*[(7, name, 32, 7)] * 3)
    assert counted(table) == [["decode", 7, 7]] * 3


@pytest.mark.parametrize("per_block", [1, 2, 4, 8, 16])
def test_unified_attention_gives_sequences_for_any_number_of_queries_per_block(per_block):
    passes = [(tokens, "kernel_unified_attention_2d", tokens // per_block + many, 8) for tokens, many in
              ((1000, 3), (3, 3), (3, 3), (3, 3), (700, 1), (4, 4))]  # fmt: skip
    table = steps(*passes)
    assert table["phase"].tolist() == ["prefill"] + ["decode"] * 3 + ["prefill", "decode"]
    assert table["sequences"].tolist() == [3, 3, 3, 3, 1, 4]


def test_fewer_rows_of_logits_than_sequences_of_one_token_are_padding():
    table = steps(*[(8, WHOLE.format(causal="false"), 1, 8)] * 3, logits=5)
    assert counted(table) == [["decode", 5, 5]] * 3
    assert table["padded_tokens"].tolist() == [3, 3, 3]


def test_what_two_grids_contradict_is_unknown():
    r = Gridded()
    r.kernel("embedding", "gather")
    for _ in range(3):
        r.gridded("kv_cache", WRITE, 640)
        r.gridded("attention", WHOLE.format(causal="true"), 5, 1)
        r.gridded("attention", "_fwd_grouped_kernel_stage1", 4, 8)
        r.kernel("gemm", "product")
    r.kernel("sampling", "argmax")
    assert find(*r.build()).table["sequences"].isna().all()


@pytest.mark.parametrize("lies", ["", INDUCTOR])
def test_names_that_lie_change_nothing(lies):
    """Inductor names what it fused; paged prompts run splitkv, decoding runs FlashInfer's prefill kernel."""
    paged = SPLITKV.format(causal="true", split="false")
    batched = (
        "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)0, 16u>>"
    )
    prompts = steps(*[(600, paged, 10, 1), (900, paged, 15, 1), (300, paged, 5, 1)], lies=lies, logits=1)
    assert counted(prompts) == [["prefill", 600, 1], ["prefill", 900, 1], ["prefill", 300, 1]]
    decodes = steps(*[(1, batched, 132, 1)] * 4, lies=lies)
    assert decodes["phase"].tolist() == ["decode"] * 4
    assert all(confidence >= 0.75 for confidence in decodes["confidence"])


def test_a_lying_name_alone_names_no_phase():
    """Nothing but names: neither a fused kernel's words nor an unknown attention kernel's settle anything."""
    r = Recording()
    for _ in range(4):
        r.kernel("embedding", "gather")
        for _ in range(3):
            r.kernel("gemm", "product")
            r.kernel("fused_triton", INDUCTOR)
            r.kernel("attention", "some_attention")
        r.kernel("sampling", "argmax")
    assert find(*r.build()).table["phase"].tolist() == ["other"] * 4


def test_a_splitkv_kernel_that_says_it_decodes_is_believed_and_one_that_does_not_is_not():
    """The same family in both phases: the flags and grids decide, not the name."""
    decode = steps(*[(4, FA2.format(causal="false", split="false"), 1, 4)] * 3)
    assert counted(decode) == [["decode", 4, 4]] * 3


def test_hostile_names_of_flash_attention_are_read_in_time_and_give_no_number() -> None:
    many = "flash_fwd_kernel<" * 40 + "_traits<1,1," * 40 + (">," + " " * 20 + "(") * 35
    long = WHOLE.format(causal="true").replace("128, 128, 128", f"128, {'9' * 30}, 128")
    names = [f"{many[:1990]}{i}" for i in range(200)]
    for name in (long, *names):
        assert not grids._FA2.search(name)
    assert counted(steps((64, long, 1, 1)))
