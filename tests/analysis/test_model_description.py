"""Puts descriptions together from sources that agree, that contradict each other, and that are not there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traceanalyzer.analysis.model import Description, Observed, describe, of_recorder, sizes
from traceanalyzer.analysis.model.describe import recognised
from traceanalyzer.catalog.hf_config import GivenModel, given
from traceanalyzer.catalog.models import find
from traceanalyzer.catalog.weight_bits import plain

LLAMA = Observed(layers=32, hidden=4096, table_rows=128_256, heads=32, kv_heads=8, head_dim=128, dtype="bf16")
OSS = Observed(layers=24, hidden=2880, head_rows=201_088)
GIVEN = given("llama-3.1-8b")


def described(model: str, **changes: object) -> Description:
    return replace(describe({}, given(model), Observed(**changes))[0])  # type: ignore[arg-type]


def test_each_field_says_where_it_is_from() -> None:
    facts = {"name": "tuned", "hidden": 4096, "weight_bytes": 5e9, "experts": True, "kv_dtype": 8}
    found, notes = describe(facts, GIVEN, LLAMA)
    assert (found.name, found.hidden, found.weight_bytes, found.layers, found.dtype) == ("tuned", 4096, 5e9, 32, "bf16")
    said = [found.sources[name] for name in ("name", "hidden", "weight_bytes", "layers", "dtype")]
    assert said == ["recorder", "recorder", "recorder", "user", "trace"]
    assert "experts" not in found.sources
    assert "kv_dtype" not in found.sources
    assert not notes


def test_without_anybodys_word_the_trace_speaks_and_a_known_shape_is_recognised() -> None:
    found, notes = describe({}, None, OSS)
    assert (found.name, found.experts, found.parameters) == ("gpt-oss-20b", 32, 20_914_757_184)
    assert (found.sources["hidden"], found.sources["experts"]) == ("trace", "catalogue")
    assert not notes
    alone, _ = describe({}, None, replace(OSS, hidden=2881))
    assert (alone.hidden, alone.layers, alone.vocab, alone.name) == (2881, 24, 201_088, None)
    assert set(alone.sources.values()) == {"trace"}


def test_models_of_one_shape_share_the_name_and_others_are_not_guessed() -> None:
    assert recognised(Description(), LLAMA).id == "llama-3-8b / llama-3.1-8b"  # type: ignore[union-attr]
    old = Observed(layers=32, hidden=4096, table_rows=32_000)  # Llama 2, Mistral or Mixtral
    assert recognised(Description(), old) is None
    assert recognised(Description(), replace(old, heads=32, kv_heads=8, routes=True)).id == "mixtral-8x7b"  # type: ignore[union-attr]
    for missing in ("layers", "hidden", "table_rows"):
        assert recognised(Description(), replace(LLAMA, **{missing: None})) is None  # type: ignore[arg-type]
    assert recognised(of_recorder({"layers": 24, "hidden": 2880, "vocab": 201_088}), Observed()).id == "gpt-oss-20b"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("seen", "field"),
    [
        (replace(LLAMA, hidden=5120), "hidden 4096, the trace says 5120"),
        (replace(LLAMA, layers=33), "layers 32, the trace says 33"),
        (replace(LLAMA, table_rows=32_000), "vocab 128256, the trace says 32000"),
        (replace(LLAMA, table_rows=128_255), "vocab 128256, the trace says 128255"),
        (replace(LLAMA, heads=24), "heads 32, the trace says 24"),
        (replace(LLAMA, kv_heads=4), "kv heads 8, the trace says 4"),
        (replace(LLAMA, head_dim=64), "head dim 128, the trace says 64"),
        (replace(LLAMA, routes=True), "experts none, the trace says kernels for experts"),
        (replace(LLAMA, packed_share=0.8), "quantization none, the trace says kernels for quantised weights"),
    ],
)
def test_a_given_model_that_does_not_fit_is_told_and_not_used(seen: Observed, field: str) -> None:
    found, notes = describe({}, GIVEN, seen)
    assert [note.code for note in notes] == ["given_model_contradicted"]
    assert notes[0].detail == field
    assert sizes.held(found) is None
    assert sizes.read(found, 4) is None


def test_what_is_contradicted_is_the_traces() -> None:
    found, _ = describe({}, GIVEN, replace(LLAMA, kv_heads=4))
    assert (found.kv_heads, found.sources["kv_heads"]) == (4, "trace")
    assert sizes.kv_per_token(found) is None
    found, _ = describe({}, GIVEN, replace(LLAMA, table_rows=130_000))
    assert (found.vocab, found.sources["vocab"]) == (130_000, "trace")
    assert (found.name, found.experts, found.tied_embeddings) == (None, None, None)  # it is another model
    assert sizes.kv_per_token(found) == 131_072  # no vocabulary is in it


@pytest.mark.parametrize(
    "seen",
    [
        LLAMA,
        Observed(),
        replace(LLAMA, kv_heads=32),  # attention repeats the key heads
        replace(LLAMA, table_rows=128_320),  # padded to a multiple of 64
        replace(LLAMA, dtype="fp16"),
    ],
)
def test_what_engines_do_to_a_model_contradicts_nothing(seen: Observed) -> None:
    found, notes = describe({}, GIVEN, seen)
    assert not notes
    assert sizes.held(found) == 2 * 8_030_261_248


def test_a_recorder_contradicts_a_given_model_as_well() -> None:
    found, notes = describe({"hidden": 2048, "layers": 16, "quantization": "int4"}, GIVEN, Observed())
    assert [note.code for note in notes] == ["given_model_contradicted"]
    for part in ("layers 32, its recorder says 16", "hidden 4096, its recorder", "quantization none, its recorder"):
        assert part in notes[0].detail
    assert sizes.held(found) is None


@pytest.mark.parametrize(
    ("seen", "tp"),
    [
        (Observed(), 1),
        (Observed(world_size=1), 1),
        (Observed(world_size=4), None),  # data parallel, or pipelined, or anything
        (Observed(world_size=4, reduces=True), 4),
        (Observed(world_size=4, heads=8), 4),
        (Observed(world_size=8, heads=16), 2),
        (Observed(world_size=4, heads=32), 1),
        (Observed(world_size=8, table_rows=16_032), 8),
        (Observed(world_size=2, table_rows=128_256, head_rows=64_128), 2),  # only the output layer is divided
        (Observed(world_size=2, table_rows=128_256), None),
        (Observed(reduces=True), None),
        (Observed(reduces=True, heads=16), 2),
    ],
)
def test_ranks_that_divide_the_layers(seen: Observed, tp: int | None) -> None:
    found, notes = describe({}, GIVEN, seen)
    assert found.tp == tp
    assert [note.code for note in notes] == ([] if tp else ["model_ranks_unknown"])
    assert (sizes.held(found) is None) == (tp is None)


def test_one_rank_of_four_holds_a_fourth_but_for_what_is_whole() -> None:
    found = described("llama-3.1-8b", world_size=4, reduces=True)
    norms = 65 * 4096
    assert sizes.held(found) == 2 * ((8_030_261_248 - norms) / 4 + norms)
    assert sizes.kv_per_token(found) == 131_072 / 4
    assert sizes.kv_per_token(described("llama-3.1-8b", world_size=16, reduces=True)) == 131_072 / 8  # one head each


def test_what_a_dense_step_reads() -> None:
    found = described("llama-3.1-8b")
    read = sizes.read(found, 3)
    assert read is not None
    assert read.bytes == read.least == read.most == 2 * (8_030_261_248 - 128_256 * 4096)
    assert read.flops == pytest.approx(2 * 3 * (8_030_261_248 - 128_256 * 4096), rel=1e-4)
    for tokens in (None, 0, 0.5):
        assert sizes.read(found, tokens) is None


@pytest.mark.parametrize(("tokens", "middle"), [(1, 8), (8, 51.6), (32, 111.8), (10_000, 128)])
def test_experts_of_an_even_draw(tokens: int, middle: float) -> None:
    least, even, most = sizes.active_experts(128, 8, tokens)
    assert (least, most) == (8, min(128, 8 * tokens))
    assert even == pytest.approx(middle, abs=0.05)


def test_the_packed_experts_of_gpt_oss() -> None:
    read = sizes.read(described("gpt-oss-20b"), 1)
    assert read is not None
    assert read.least == read.bytes == read.most
    expert = (3 * 2880 * 2880 + 3 * 2880) * 4.25 / 8
    attention = 2880 * (4096 + 1024) + 4096 * 2880 + 4096 + 1024 + 2880 + 64
    dense = 24 * attention + 201_088 * 2880 + 24 * (2 * 2880 + 32 * 2881) + 2880
    assert read.bytes == 24 * 4 * expert + 2 * dense
    assert sizes.held(described("gpt-oss-20b")) == pytest.approx(13.75e9, rel=1e-3)


def test_kernels_that_multiply_plain_weights_read_plain_ones() -> None:
    plainly = Observed(expert_plain_share=1.0, dtype="bf16")
    found, notes = describe({}, given("gpt-oss-20b"), plainly)
    assert (found.weight_bits, found.sources["weight_bits"]) == (plain(16), "trace")
    assert [note.code for note in notes] == ["given_model_contradicted"]
    assert sizes.held(found) == 2 * 20_914_757_184
    packed, _ = describe({}, given("gpt-oss-20b"), replace(plainly, expert_packed_share=0.9, expert_plain_share=0.1))
    assert packed.weight_bits == find("gpt-oss-20b").weight_bits


def test_a_copy_that_is_quantised_has_the_shape_and_no_weight_bytes() -> None:
    found, notes = describe({}, None, replace(LLAMA, packed_share=0.9))
    assert found.name == "llama-3-8b / llama-3.1-8b"
    assert [note.code for note in notes] == ["known_model_stored_otherwise"]
    assert sizes.held(found) is None
    assert sizes.kv_per_token(found) == 131_072


def test_a_window_bounds_what_is_read_and_not_what_is_kept() -> None:
    found = described("gemma-3-12b")  # 48 layers, every 6th sees everything, the others 1,024 tokens
    layer = 2 * 8 * 256 * 2
    assert sizes.kv_per_token(found) == 48 * layer
    assert sizes.kv_read(found, 3 * 4000.0, 3) == 3 * layer * (8 * 4000 + 40 * 1024)
    assert sizes.kv_read(found, 3 * 500.0, 3) == 3 * layer * 48 * 500
    assert sizes.kv_read(found, 12_000.0, None) is None
    assert sizes.kv_read(found, None, 3) is None


def test_latent_attention_keeps_one_compressed_row_on_every_rank() -> None:
    found = described("deepseek-v3", world_size=8, reduces=True)
    assert sizes.kv_per_token(found) == 61 * 576 * 2
    assert sizes.flops_per_kv_byte(described("deepseek-v3")) == pytest.approx(2 * 128 * 1088 / (576 * 2))


def test_a_wider_data_type_widens_plain_weights() -> None:
    assert sizes.held(described("llama-3.2-1b", dtype="fp32")) == 4 * find("llama-3.2-1b").parameters
    assert sizes.kv_per_token(described("llama-3.1-8b", kv_dtype="fp8")) == 131_072 / 2


def test_the_figures_follow_the_config() -> None:
    base = find("llama-3.1-8b")
    for change in ({"hidden": 2048}, {"layers": 16}, {"kv_heads": 2}, {"vocab": 1000}, {"ffn": 1024}):
        other = replace(base, **change)  # type: ignore[arg-type]
        found, _ = describe({}, GivenModel("config.json", other), Observed())
        assert sizes.held(found) == 2 * other.parameters != 2 * base.parameters
        assert sizes.kv_per_token(found) == 2 * other.kv_elements_per_token


def test_products_alone_are_no_model() -> None:
    found, _ = describe({}, None, Observed(heads=16, head_dim=64, dtype="fp32"))
    assert not found.sources.keys() - {"tp"}


def test_nothing_is_known_of_nothing() -> None:
    found, notes = describe({}, None, Observed())
    assert not found.sources.keys() - {"tp"}
    assert not notes
    assert (sizes.held(found), sizes.read(found, 1), sizes.kv_per_token(found)) == (None, None, None)
