"""Attention: pairs counted one by one, GQA, windows, packed batches, paged caches."""

from __future__ import annotations

import pytest

from tests.analysis.work.calls import BF16, FP16, call, known

FLASH = "aten::_flash_attention_forward"


def flash(q: list[int], k: list[int], causal: bool, left: str = "", right: str = "") -> float:
    work = known(FLASH, [q, k, k] + [[]] * 10, [BF16] * 3 + [""] * 2 + ["Scalar"] * 8,
                 ["", "", "", "", "", str(q[1]), str(k[1]), "0.", str(causal), "False", "", left, right])  # fmt: skip
    assert work.flops is not None
    return work.flops


def kept(q: int, k: int, left: int | None, right: int | None) -> int:
    """Pairs of a bottom-right aligned window, counted one by one."""
    count = 0
    for row in range(q):
        position = k - q + row
        first = 0 if left is None else max(0, position - left)
        last = k - 1 if right is None else min(k - 1, position + right)
        count += max(0, last - first + 1)
    return count


def test_all_pairs_without_a_mask() -> None:
    assert flash([2, 10, 4, 8], [2, 30, 4, 8], False) == 2 * 2 * 4 * (10 * 30) * 16


def test_a_causal_mask_is_half_of_the_square() -> None:
    assert flash([2, 10, 4, 8], [2, 10, 4, 8], True) == flash([2, 10, 4, 8], [2, 10, 4, 8], False) / 2


def test_a_chunk_sees_its_whole_past() -> None:
    """The last 10 of 30 positions: all 20 before, and half of its own square."""
    assert flash([1, 10, 1, 8], [1, 30, 1, 8], True) == 2 * (10 * 20 + 50) * 16


def test_a_causal_chunk_differs_from_single_pairs_by_half_its_diagonal() -> None:
    exact = 2 * 16 * kept(10, 30, None, 0)
    assert exact - flash([1, 10, 1, 8], [1, 30, 1, 8], True) == 2 * 16 * 10 / 2


def test_one_query_sees_every_key_with_or_without_a_mask() -> None:
    for causal in (True, False):
        assert flash([3, 1, 4, 8], [3, 77, 4, 8], causal) == 3 * 2 * 4 * 77 * 16


@pytest.mark.parametrize(("q", "k", "left"), [(10, 10, 3), (10, 30, 3), (10, 30, 25), (1, 300, 127), (200, 200, 127)])
def test_a_sliding_window_keeps_its_pairs(q: int, k: int, left: int) -> None:
    """The diagonal counts half as it does without a window; one query has none."""
    causal = kept(q, k, left, 0) - (q / 2 if q > 1 else 0)
    assert flash([1, q, 1, 8], [1, k, 1, 8], True, str(left), "0") == 2 * causal * 16
    assert flash([1, q, 1, 8], [1, k, 1, 8], False, str(left), "5") == 2 * kept(q, k, left, 5) * 16


@pytest.mark.parametrize(("q", "k"), [(4, 4), (10, 30), (1, 30), (30, 10)])
def test_a_window_that_hides_nothing_changes_nothing(q: int, k: int) -> None:
    assert flash([1, q, 1, 8], [1, k, 1, 8], True, "100", "0") == flash([1, q, 1, 8], [1, k, 1, 8], True)
    if q == k == 4:
        assert flash([1, q, 1, 8], [1, k, 1, 8], True, "100", "0") == 2 * 8 * 16


def test_keys_and_values_are_read_once_per_kv_head() -> None:
    work = known(FLASH, [[1, 1, 32, 128], [1, 700, 8, 128], [1, 700, 8, 128]] + [[]] * 7,
                 [FP16] * 3 + [""] * 2 + ["Scalar"] * 5, [""] * 5 + ["1", "700", "0.", "False", "False"])  # fmt: skip
    assert work.kv_bytes == 2 * 2 * 700 * 8 * 128
    assert work.bytes == 2 * 2 * 700 * 8 * 128 + 2 * 2 * 32 * 128
    assert work.flops == 4 * 32 * 700 * 128
    assert (work.q_len, work.kv_len, work.heads, work.kv_heads, work.head_dim, work.batch) == (1, 700, 32, 8, 128, 1)


def test_a_window_reads_only_its_keys() -> None:
    dims = [[1, 1, 8, 64], [1, 700, 8, 64], [1, 700, 8, 64]] + [[]] * 10
    concrete = ["", "", "", "", "", "1", "700", "0.", "True", "False", "", "127", "0"]
    work = known(FLASH, dims, [FP16] * 3 + [""] * 2 + ["Scalar"] * 8, concrete)
    assert work.kv_bytes == 2 * 2 * 128 * 8 * 64
    assert work.flops == 4 * 8 * 128 * 64


def test_the_cpu_kernel_aligns_its_mask_top_left() -> None:
    """PyTorch's is_causal lets the first query see the first key only, however many keys there are."""
    q, k = [1, 4, 10, 16], [1, 4, 30, 16]
    types = [FP16] * 3 + ["Scalar", "Scalar", "", "Scalar"]
    work = known("aten::_scaled_dot_product_flash_attention_for_cpu", [q, k, k, [], [], [], []], types,
                 ["", "", "", "0.", "True", "", "0.25"])  # fmt: skip
    assert work.flops == 2 * 4 * 50 * 32
    assert work.kv_bytes == 2 * 2 * 4 * 10 * 16, "the keys that no query sees are not read"


@pytest.mark.parametrize(("kind", "pairs"), [("0", 300), ("1", 50), ("2", 250)])
def test_the_memory_efficient_kernel_names_its_alignment(kind: str, pairs: int) -> None:
    q, k = [1, 10, 4, 16], [1, 30, 4, 16]
    concrete = ["", "", "", "", "", "", "10", "30", "0.", kind, "False"]
    work = known("aten::_efficient_attention_forward", [q, k, k] + [[]] * 8,
                 [FP16] * 3 + [""] * 3 + ["Scalar"] * 5, concrete)  # fmt: skip
    assert work.flops == 2 * 4 * pairs * 32


def test_a_broadcast_mask_is_read_once() -> None:
    name = "aten::_scaled_dot_product_efficient_attention"
    shape = [2, 4, 10, 16]
    strides = [[640, 160, 16, 1]] * 3 + [[100, 0, 10, 1]] + [[]] * 3
    work = known(name, [shape, shape, shape, [2, 4, 10, 10], [], [], []], [FP16] * 4 + ["Scalar"] * 3,
                 ["", "", "", "", "False", "0.", "False"], strides)  # fmt: skip
    assert work.bytes == 4 * 2 * 2 * 4 * 10 * 16 + 2 * 2 * 10 * 10
    assert work.flops == 2 * 2 * 4 * 100 * 32, "which pairs an explicit mask keeps is not recorded"


def paged(tokens: int, sequences: int, max_q: int, max_k: int, window: str = "-1") -> object:
    dims = [[tokens, 32, 128], [9000, 16, 8, 128], [9000, 16, 8, 128], [tokens, 32, 128], [sequences + 1], [],
            [sequences], [], [sequences, 64], [], [], [], [], [], [], [], [], []]  # fmt: skip
    types = [BF16] * 4 + ["int", "", "int", "", "int", ""] + ["Scalar"] * 8
    concrete = [""] * 10 + [str(max_q), str(max_k), "0.", "0.088", "False", "True", window, "-1"]
    return call("_vllm_fa2_C::varlen_fwd", dims, types, concrete)


def test_a_packed_batch_of_equal_lengths_is_exact() -> None:
    work = paged(tokens=400, sequences=4, max_q=100, max_k=100)
    assert work.flops == 4 * 2 * 32 * (100 * 100 / 2) * 256  # type: ignore[attr-defined]
    assert (work.batch, work.q_len, work.kv_len, work.estimated) == (4, 100, 100, False)  # type: ignore[attr-defined]


def test_a_packed_batch_of_other_lengths_is_estimated_from_below() -> None:
    """Lengths 100, 50 and 30: equal lengths of 60 give the least that 180 tokens in 3 sequences can take."""
    work = paged(tokens=180, sequences=3, max_q=100, max_k=100)
    assert work.estimated is True  # type: ignore[attr-defined]
    assert work.flops == pytest.approx(2 * 32 * 3 * (60 * 60 / 2) * 256)  # type: ignore[attr-defined]
    assert work.flops < 2 * 32 * (100**2 + 50**2 + 30**2) / 2 * 256  # type: ignore[attr-defined]
    assert work.q_len is None  # type: ignore[attr-defined]


def test_a_paged_decode_step_does_not_tell_its_contexts() -> None:
    work = paged(tokens=32, sequences=32, max_q=1, max_k=2048)
    assert (work.flops, work.bytes) == (None, None)  # type: ignore[attr-defined]
    assert (work.batch, work.q_len, work.heads, work.kv_heads) == (32, 1, 32, 8)  # type: ignore[attr-defined]


def test_one_paged_sequence_tells_its_context() -> None:
    work = paged(tokens=1, sequences=1, max_q=1, max_k=2048)
    assert work.flops == 4 * 32 * 2048 * 128  # type: ignore[attr-defined]
    assert work.kv_len == 2048  # type: ignore[attr-defined]


def test_decode_over_packed_keys_is_exact_whatever_the_lengths() -> None:
    """Three queries over 10, 20 and 70 keys: 100 pairs in all, and the trace tells the 100."""
    dims = [[3, 8, 64], [100, 2, 64], [100, 2, 64], [4], [4], [], [], [], [], [], [], []]
    types = [BF16] * 3 + ["int", "int"] + ["Scalar"] * 7
    work = known("flash_attn::_flash_attn_varlen_forward", dims, types,
                 ["", "", "", "", "", "1", "70", "0.", "0.1", "True", "-1", "-1"])  # fmt: skip
    assert work.flops == 2 * 8 * 100 * 128
    assert work.kv_bytes == 2 * 2 * 100 * 2 * 64
    assert work.estimated is False


def test_unified_attention_leaves_its_context_to_the_step() -> None:
    work = known("vllm::unified_attention_with_output", [[32, 64, 64], [32, 8, 64], [32, 8, 64], [32, 64, 64]],
                 ["c10::Float8_e4m3fn", BF16, BF16, BF16])  # fmt: skip
    assert (work.flops, work.bytes, work.role) == (None, None, "attention")
    assert (work.q_len, work.batch, work.heads, work.kv_heads, work.head_dim) == (32, None, 64, 8, 64)
    assert work.dtype == "fp8"


def test_heads_that_do_not_divide_are_unknown() -> None:
    empty: list[list[int]] = [[]] * 7
    assert call(FLASH, [[1, 10, 8, 8], [1, 10, 4, 8], [1, 10, 4, 8], *empty], [BF16] * 3) is not None
    assert call(FLASH, [[1, 10, 7, 8], [1, 10, 4, 8], [1, 10, 4, 8], *empty], [BF16] * 3) is None


def test_the_parent_is_not_counted() -> None:
    assert call("aten::scaled_dot_product_attention", [[1, 4, 10, 8]] * 3, [BF16] * 3) is None


def test_values_may_be_of_another_size_than_keys() -> None:
    """A prefill of latent attention: keys of 192, values of 128."""
    q, v = [1, 10, 16, 192], [1, 10, 16, 128]
    work = known("flash_attn::_flash_attn_forward", [q, q, v, [], [], [], [], []], [BF16] * 3 + ["Scalar"] * 5,
                 ["", "", "", "0.", "0.07", "False", "-1", "-1"])  # fmt: skip
    assert work.flops == 2 * 16 * 100 * (192 + 128)
    assert work.kv_bytes == 2 * 10 * 16 * (192 + 128)
    assert work.bytes == 2 * 2 * 10 * 16 * (192 + 128)


def test_latent_queries_are_scored_against_the_values() -> None:
    """One token over 700 latent keys: 64 rotated numbers against K, 512 against V, which is also what is summed."""
    dims: list[list[int]] = [[1, 16, 64], [700, 1, 64], [700, 1, 512], [], [], [1, 16, 512], [], [2], [2]]
    dims += [[] for _ in range(18)]
    types = [BF16] * 3 + ["", "", BF16, "", "int", "int"] + [""] * 3 + ["Scalar"] * 2 + [""] * 9 + ["Scalar"] * 4
    concrete = [""] * 12 + ["1", "700"] + [""] * 10 + ["True", "-1", "-1"]
    work = known("flash_attn_3::fwd", dims, types, concrete)
    assert work.flops == 2 * 16 * 700 * (576 + 512)
    assert work.kv_bytes == 2 * 700 * 576
    assert work.bytes == 2 * (700 * 576 + 16 * (576 + 512))


@pytest.mark.parametrize(("window", "keys"), [("0", 700), ("128", 128), ("1", 1)])
def test_the_memory_efficient_kernels_window_includes_the_query_itself(window: str, keys: int) -> None:
    dims = [[1, 1, 8, 64], [1, 700, 8, 64], [1, 700, 8, 64]] + [[]] * 11
    concrete = ["", "", "", "", "", "", "1", "700", "0.", "2", "False", "", "", window]
    work = known("aten::_efficient_attention_forward", dims, [FP16] * 3 + [""] * 3 + ["Scalar"] * 8, concrete)
    assert work.flops == 4 * 8 * keys * 64


def test_scales_stand_before_the_window_where_there_are_any() -> None:
    fp8 = "c10::Float8_e4m3fn"
    dims = [[1, 1, 8, 64], [1, 700, 8, 64], [1, 700, 8, 64]] + [[]] * 15
    concrete = ["", "", "", "", "", "1", "700", "0.", "True", "False", "", "", "", "", "127", "0", "", ""]
    work = known(FLASH, dims, [fp8] * 3 + [""] * 15, concrete)
    assert work.flops == 4 * 8 * 128 * 64


@pytest.mark.parametrize(
    ("name", "before", "q", "sizes"),
    [
        ("_C::paged_attention_v1", 1, [32, 64, 128], (32, 1, 64, 8, 128)),
        ("_C::paged_attention_v2", 4, [32, 64, 128], (32, 1, 64, 8, 128)),
        ("sgl_kernel::cutlass_mla_decode", 1, [32, 128, 512], (32, 1, 128, 1, 576)),
        ("vllm::unified_mla_attention_with_output", 0, [888, 16, 192], (None, 888, 16, None, 192)),
    ],
)
def test_a_paged_cache_tells_sizes_but_no_context(
    name: str, before: int, q: list[int], sizes: tuple[int | None, ...]
) -> None:
    rope = [[32, 128, 64]] if "cutlass" in name else [[9000, 8, 16, 16, 8]]
    dims = [[1]] * before + [q, *rope, [9000, 8, 128, 16], []]
    work = known(name, dims, [BF16] * (before + 3) + ["Scalar"], [""] * (before + 3) + ["8"])
    assert (work.flops, work.bytes, work.kv_bytes) == (None, None, None)
    assert (work.batch, work.q_len, work.heads, work.kv_heads, work.head_dim) == sizes


def test_flash_mla_tells_its_sizes_whatever_the_version() -> None:
    q = [32, 2, 128, 576]
    for count in (10, 11, 15):
        work = known("_flashmla_C::fwd_kvcache_mla", [q, *[[]] * (count - 1)], [BF16, *[""] * (count - 1)])
        assert (work.batch, work.q_len, work.heads, work.kv_heads, work.head_dim) == (32, 2, 128, 1, 576)
