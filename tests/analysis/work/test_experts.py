"""Mixtures of experts: FLOPs of the assignments, weights of the experts that some token takes."""

from __future__ import annotations

import itertools

import pytest

from tests.analysis.work.calls import BF16, FP32, call, known
from traceanalyzer.analysis.work import OpWork

FP8, BYTE = "c10::Float8_e4m3fn", "unsigned char"
FUSED = "vllm::outplace_fused_experts"


def fused(tokens: int, chosen: int, count: int, hidden: int, inner: int, *more: tuple[list[int], str],
          weight: str = BF16, values: int = 1) -> OpWork:  # fmt: skip
    dims: list[list[int]] = [
        [tokens, hidden], [count, 2 * inner, hidden // values], [count, hidden, inner // values], [tokens, chosen],
        [tokens, chosen],
    ]  # fmt: skip
    types = [BF16, weight, weight, FP32, "int"]
    return known(FUSED, dims + [d for d, _ in more], types + [t for _, t in more])


def active(tokens: int, chosen: int, count: int) -> float:
    """The mean number of experts taken, over every way in which the tokens can choose theirs."""
    choices = list(itertools.combinations(range(count), chosen))
    ways = list(itertools.product(choices, repeat=tokens))
    return sum(len(set().union(*way)) for way in ways) / len(ways)


@pytest.mark.parametrize(("tokens", "chosen", "count"), [(1, 2, 4), (2, 2, 4), (3, 1, 5), (3, 2, 5), (4, 3, 4)])
def test_weights_are_those_of_the_experts_an_even_draw_takes(tokens: int, chosen: int, count: int) -> None:
    hidden, inner = 8, 3
    work = fused(tokens, chosen, count, hidden, inner)
    assert work.flops == 6 * tokens * chosen * hidden * inner
    per_expert = 2 * 3 * hidden * inner
    assert work.weight_bytes == pytest.approx(active(tokens, chosen, count) * per_expert)
    assert work.weight_bytes_min == chosen * per_expert
    assert work.weight_bytes_max == min(count, tokens * chosen) * per_expert
    # x read; the first product written, its gated half read, the second product written
    between = tokens * hidden + tokens * chosen * (2 * inner + inner + hidden)
    assert work.bytes == pytest.approx(work.weight_bytes + 2 * between)
    assert work.estimated == (work.weight_bytes_min != work.weight_bytes_max)


@pytest.mark.parametrize(("tokens", "expected"), [(1, 8.0), (8, 51.6), (32, 111.8)])
def test_published_counts_of_active_experts(tokens: int, expected: float) -> None:
    """Qwen3-30B-A3B: 8 of 128 experts."""
    work = fused(tokens, 8, 128, 2048, 768)
    assert work.weight_bytes == pytest.approx(expected * 2 * 3 * 2048 * 768, rel=1e-3)


def test_scales_are_read_with_their_experts() -> None:
    scales = (([4, 6, 2], FP32), ([4, 8, 1], FP32), ([1, 1], FP32))
    plain, scaled = fused(1, 2, 4, 256, 128, weight=FP8), fused(1, 2, 4, 256, 128, *scales, weight=FP8)
    assert plain.weight_bytes == 2 * 3 * 256 * 128
    assert scaled.weight_bytes == plain.weight_bytes + 2 * 4 * (6 * 2 + 8)
    assert scaled.flops == plain.flops


def test_two_values_per_byte_do_not_halve_the_work() -> None:
    packed = fused(1, 2, 4, 256, 128, weight=BYTE, values=2)
    assert packed.flops == 6 * 2 * 256 * 128
    assert packed.weight_bytes == 2 * 3 * 256 * 128 / 2
    assert packed.dtype == "bf16"


def test_of_experts_spread_over_devices_this_one_takes_its_share() -> None:
    """4 of 16 experts here: a map of 16 entries says so."""
    alone, share = fused(10, 2, 4, 8, 3), fused(10, 2, 4, 8, 3, ([16], "int"))
    assert alone.flops is not None
    assert share.flops == alone.flops / 4
    assert share.weight_bytes == pytest.approx(4 * (1 - (1 - 2 / 16) ** 10) * 2 * 3 * 8 * 3)
    assert (share.weight_bytes_min, share.weight_bytes_max) == (0, 4 * 2 * 3 * 8 * 3)
    assert share.estimated


def test_no_tokens_are_no_work() -> None:
    work = fused(0, 2, 4, 8, 3)
    assert (work.flops, work.bytes, work.weight_bytes_max) == (0, 0, 0)


def test_without_a_gate_the_first_product_is_half_as_wide() -> None:
    work = known(FUSED, [[5, 8], [4, 3, 8], [4, 8, 3], [5, 2], [5, 2]], [BF16] * 3 + [FP32, "int"])
    assert work.flops == 2 * 5 * 2 * 8 * (3 + 3)


@pytest.mark.parametrize(
    "dims",
    [
        [[5, 8], [4, 6, 8], [4, 8, 3], [], []],
        [[5, 8], [4, 6, 8], [3, 8, 3], [5, 2], [5, 2]],
        [[5, 8], [4, 6, 8], [4, 8, 5], [5, 2], [5, 2]],
        [[5, 8], [4, 6, 8], [4, 8, 3], [5, 9], [5, 9]],
    ],
)
def test_what_does_not_fit_is_unknown(dims: list[list[int]]) -> None:
    assert call(FUSED, dims, [BF16] * 3 + [FP32 if d else "" for d in dims[3:]]) is None


def test_a_layer_that_names_neither_width_nor_choice_is_unknown() -> None:
    assert call("vllm::moe_forward", [[888, 3072], [888, 128], []], [BF16, BF16, ""]) is None


def test_sorted_rows_times_their_experts() -> None:
    work = known("aten::_grouped_mm", [[6, 8], [4, 8, 3], [4], [], []], [BF16, BF16, "int", "", ""])
    assert work.flops == 2 * 6 * 8 * 3
    assert work.weight_bytes == pytest.approx(active(6, 1, 4) * 2 * 8 * 3)
    assert (work.weight_bytes_min, work.weight_bytes_max) == (2 * 8 * 3, 4 * 2 * 8 * 3)
    batched = known("aten::_grouped_mm", [[4, 6, 8], [4, 8, 3], [], [], []], [BF16, BF16, "", "", ""])
    assert (batched.flops, batched.weight_bytes) == (2 * 4 * 6 * 8 * 3, 2 * 4 * 8 * 3)
    assert not batched.estimated


def test_a_packed_product_counts_values_not_words() -> None:
    """Marlin, 4 bits: (E, K/16, 16 N / 8 words) of 4 bytes, scales per 128 of K."""
    tokens, chosen, count, inner, n = 3, 2, 4, 256, 64
    dims = [[tokens, inner], [], [count, inner // 16, 2 * n], [count, 2, n], *[[]] * 9, [], *[[]] * 10]
    concrete = [*[""] * 12, "8", str(chosen), "False", "False", "1", str(tokens), str(n), str(inner), *["True"] * 4]
    work = known("sgl_kernel::moe_wna16_marlin_gemm", dims, [BF16, "", "int", BF16] + [""] * 20, concrete)
    assert work.flops == 2 * tokens * chosen * inner * n
    assert work.weight_bytes == pytest.approx(active(tokens, chosen, count) * (inner * n / 2 + 2 * 2 * n))
