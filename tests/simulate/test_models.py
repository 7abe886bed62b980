"""The catalogue of models: parameter counts that follow from the shapes, against what publishers state."""

from __future__ import annotations

import pytest

from traceanalyzer.catalog.models import find, models
from traceanalyzer.errors import InputError

# Totals as published with the weights; active counts as the publishers round them.
TOTALS = {
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
    "gemma-2-9b": 9_241_705_984,
    "gpt2": 124_439_808,
    "falcon-7b": 6_921_720_704,
    "phi-3-mini": 3_821_079_552,
}


@pytest.mark.parametrize(("name", "total"), TOTALS.items())
def test_totals_are_the_published_ones(name: str, total: int) -> None:
    assert find(name).parameters == total


@pytest.mark.parametrize("model", models(), ids=lambda model: model.id)
def test_every_model_agrees_with_its_published_total(model) -> None:
    assert model.sources
    if model.published_exact:
        assert model.parameters == model.published_parameters
    elif model.published_parameters:
        assert model.parameters == pytest.approx(model.published_parameters, rel=0.01)


def test_there_are_58_models_with_distinct_names() -> None:
    assert len({model.id for model in models()}) == 58
    for model in models():
        assert find(model.id) is model
        assert find(model.hf_name.upper()) is model


@pytest.mark.parametrize(
    ("name", "active_billions", "embedding"),
    [
        ("qwen3-235b-a22b", 22, True),
        ("mixtral-8x7b", 12.9, True),
        ("deepseek-v3", 37, False),
        ("gpt-oss-20b", 3.6, False),
    ],
)
def test_active_parameters_round_to_the_published_figure(name: str, active_billions: float, embedding: bool) -> None:
    # Some publishers leave the input embedding out of the active weights.
    model = find(name)
    left_out = 0 if embedding else model.vocab * model.hidden
    digits = 1 if active_billions % 1 else 0
    assert round((model.active_parameters - left_out) / 1e9, digits) == active_billions


def test_decode_reads_no_table_but_a_tied_one() -> None:
    llama, gemma, gpt2 = find("llama-3.1-8b"), find("gemma-2-9b"), find("gpt2")
    assert llama.decode_parameters == 8_030_261_248 - 128_256 * 4096
    assert gemma.decode_parameters == 9_241_705_984
    assert gpt2.decode_parameters == 124_439_808 - 1024 * 768


def test_cache_elements_per_token() -> None:
    assert find("llama-3.1-8b").kv_elements_per_token * 2 == 131_072
    assert find("deepseek-v3").kv_elements_per_token == 61 * 576
    assert find("qwen3-8b").kv_elements_per_token * 2 == 147_456


def test_sliding_layers_stand_where_the_configs_put_them() -> None:
    gemma3, gemma2, mistral = find("gemma-3-1b"), find("gemma-2-2b"), find("mistral-7b")
    assert [layer for layer in range(26) if gemma3.window(layer) is None] == [5, 11, 17, 23]
    assert gemma2.window(0) == 4096
    assert gemma2.window(1) is None
    assert {mistral.window(layer) for layer in range(32)} == {4096}
    assert find("llama-3.1-8b").window(0) is None


def test_an_unknown_model_names_near_ones() -> None:
    with pytest.raises(InputError, match=r"unknown model 'lama-3.1-8b' \(did you mean llama-3.1-8b"):
        find("lama-3.1-8b")
    with pytest.raises(InputError, match="unknown model"):
        find("")
    with pytest.raises(InputError, match="unknown model"):
        find("x" * 1_000_000)
