"""The fused parts of a layer, checked by hand."""

from __future__ import annotations

import pytest

from tests.analysis.work.calls import BF16, FP32, INT64, call, known

FP8, BYTE, S = "c10::Float8_e4m3fn", "unsigned char", "Scalar"


def test_norms_read_and_write_their_rows() -> None:
    assert known("_C::rms_norm", [[3, 8], [3, 8], [8], []], [BF16] * 3 + [S]).bytes == 2 * (24 + 24 + 8)
    fused = known("_C::fused_add_rms_norm", [[3, 8], [3, 8], [8], []], [BF16] * 3 + [S])
    assert fused.bytes == 2 * (4 * 24 + 8)
    without_weight = known("aten::rms_norm", [[3, 8], [], [], []], [BF16, "ScalarList", "", S])
    assert without_weight.bytes == 2 * (24 + 24)


def test_a_norm_that_quantises_writes_one_byte() -> None:
    dims = [[3, 8], [3, 8], [8], [3, 1], [], [], []]
    work = known("_C::rms_norm_dynamic_per_token_quant", dims, [FP8, BF16, BF16, FP32, S, "", ""])
    assert work.bytes == 24 + 2 * 24 + 2 * 8 + 4 * 3
    added = known("_C::rms_norm_dynamic_per_token_quant", [*dims[:6], [3, 8]], [FP8, BF16, BF16, FP32, S, "", BF16])
    assert added.bytes == work.bytes + 2 * 2 * 24, "the residual is read, and the sum written in its place"


def test_partial_rotation_moves_only_what_it_turns() -> None:
    """Heads of 8, of which 4 elements turn: half of q and k."""
    dims, types = [[3], [3, 16], [3, 8], [], [100, 4], []], [INT64, BF16, BF16, S, BF16, S]
    work = known("_C::rotary_embedding", dims, types, ["", "", "", "8", "", "True"])
    assert work.flops == 3 * 36  # 3 tokens x (16 + 8) / 2 elements, 6 FLOPs per pair
    assert work.bytes == 2 * 2 * 36 + 3 * 4 * 2 + 3 * 8


ROPE = "sgl_kernel::apply_rope_pos_ids_cos_sin_cache"


def test_a_rotation_that_stores_its_keys_also_moves_the_values() -> None:
    q, k = [3, 4, 8], [3, 2, 8]
    plain = known(ROPE, [q, k, q, k, [100, 8], [3]], [BF16] * 4 + [FP32, INT64])
    assert plain.flops == 3 * 3 * 6 * 8
    assert plain.bytes == 2 * 2 * 3 * 6 * 8 + 4 * 3 * 8 + 8 * 3
    pool = [1000, 2, 8]
    stored = known(ROPE, [q, k, q, k, [100, 8], [3], [], [], [], k, pool, pool, [3]],
                   [BF16] * 4 + [FP32, INT64, S, S, S] + [BF16] * 3 + [INT64])  # fmt: skip
    assert stored.bytes == plain.bytes + 2 * 3 * 48  # v read; k and v written


def test_heads_are_normed_and_turned_in_the_packed_projection() -> None:
    """Two query heads and one key head of 4; the value head is left alone."""
    dims = [[3, 16], [], [], [], [], [], [4], [4], [100, 4], [], [3]]
    types = [BF16, S, S, S, S, S, BF16, BF16, BF16, S, INT64]
    work = known("_C::fused_qk_norm_rope", dims, types, ["", "2", "1", "1", "4", "1e-6", "", "", "", "True", ""])
    assert work.flops == (4 + 3) * 3 * 12
    assert work.bytes == 2 * 2 * 3 * 12 + 2 * 8 + 2 * 3 * 4 + 8 * 3
    assert call("_C::fused_qk_norm_rope", dims, types, ["", "4", "1", "1", "4"]) is None, "more heads than columns"


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("_C::dynamic_per_token_scaled_fp8_quant", ("out", "x", "scale")),
        ("sgl_kernel::sgl_per_token_quant_fp8", ("x", "out", "scale")),
        ("_C::per_token_group_fp8_quant", ("x", "out", "scale")),
    ],
)
def test_quantisation_reads_sixteen_bits_and_writes_eight(name: str, order: tuple[str, ...]) -> None:
    shapes = {"x": ([3, 256], BF16), "out": ([3, 256], FP8), "scale": ([3, 2], FP32)}
    work = known(name, [shapes[o][0] for o in order], [shapes[o][1] for o in order])
    assert work.bytes == (2 + 1) * 3 * 256 + 4 * 6
    assert (work.flops, work.dtype, work.category) == (2 * 3 * 256, "bf16", "quant")


def test_quantisation_to_four_bits_writes_half_a_byte() -> None:
    dims, types = [[3, 128], [3, 256], [128, 4], [1]], [BYTE, BF16, "int", FP32]
    assert known("_C::scaled_fp4_quant", dims, types).bytes == (2 + 0.5) * 3 * 256 + 4 * 128 * 4 + 4
    out = known("_C::scaled_fp4_quant", [[3, 256], [1], [], [3, 128], [128, 4]], [BF16, FP32, S, BYTE, "int"])
    assert out.bytes == (2 + 0.5) * 3 * 256 + 4 * 128 * 4 + 4
    assert call("_C::scaled_fp4_quant", [[3, 256], [1], []], [BF16, FP32, S]) is None, "the result is not recorded"


def test_a_broadcast_key_part_is_read_once() -> None:
    """The rotary part of a latent key is the same for all heads."""
    strides = [[96, 24, 1], [64, 16, 1], [8, 0, 1]]
    work = known("sgl_kernel::concat_mla_k", [[3, 4, 24], [3, 4, 16], [3, 4, 8]], [BF16] * 3, strides=strides)
    assert work.bytes == 2 * (3 * 4 * 24 + 3 * 4 * 16 + 3 * 8)


def test_penalties_read_two_masks_and_change_the_logits_in_place() -> None:
    work = known("_C::apply_repetition_penalties_", [[3, 100], [3, 100], [3, 100], [3]], [FP32, "bool", "bool", FP32])
    assert work.bytes == 2 * 4 * 300 + 2 * 300 + 4 * 3
