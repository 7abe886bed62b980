"""Configs in Hugging Face's format: parameter counts against what transformers builds, and what is refused."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from traceanalyzer.catalog import hf_config
from traceanalyzer.catalog.hf_families import FAMILIES
from traceanalyzer.catalog.models import ModelConfig, SlidingWindow, find, models
from traceanalyzer.errors import InputError

SMALL = {"vocab_size": 640, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
OWN_HEADS = {**SMALL, "head_dim": 24}
LATENT = {**SMALL, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
          "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1,
          "topk_group": 1, "moe_intermediate_size": 32, "n_shared_experts": 2, "first_k_dense_replace": 1}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
BUILT: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SMALL),
    "llama with biases": ("Llama", {**SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {**OWN_HEADS, "sliding_window": None}),
    "mixtral": ("Mixtral", {**SMALL, "num_local_experts": 4}),
    "qwen2": ("Qwen2", SMALL),
    "qwen2_moe": ("Qwen2Moe", {**SMALL, **EXPERTS, "shared_expert_intermediate_size": 64}),
    "qwen3": ("Qwen3", OWN_HEADS),
    "qwen3_moe": ("Qwen3Moe", {**OWN_HEADS, **EXPERTS}),
    "gemma2": ("Gemma2", OWN_HEADS),
    "gemma3_text": ("Gemma3", OWN_HEADS),
    "deepseek_v2": ("DeepseekV2", LATENT),
    "deepseek_v3": ("DeepseekV3", LATENT),
    "deepseek_v3 without q_lora": ("DeepseekV3", {**LATENT, "q_lora_rank": None}),
    "gpt_oss": ("GptOss", {**OWN_HEADS, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "phi3": ("Phi3", {**SMALL, "pad_token_id": 0}),
    "phi": ("Phi", SMALL),
    "opt": ("OPT", {"vocab_size": 640, "hidden_size": 64, "ffn_dim": 160, "num_hidden_layers": 3,
                    "num_attention_heads": 4, "word_embed_proj_dim": 64}),
    "gpt2": ("GPT2", {"vocab_size": 640, "n_embd": 64, "n_layer": 3, "n_head": 4}),
}  # fmt: skip
TEXT_CLASS = {"Gemma3": "Gemma3TextConfig"}
HEAD = {"GPT2": "GPT2LMHeadModel"}


def built(kind: str) -> Any:
    """The config object of transformers."""
    prefix, settings = BUILT[kind]
    return getattr(transformers, TEXT_CLASS.get(prefix, f"{prefix}Config"))(**settings)


def written(kind: str, folder: Path) -> Path:
    """A config as transformers saves it with a model."""
    prefix, _ = BUILT[kind]
    config = built(kind)
    config.architectures = [HEAD.get(prefix, f"{prefix}ForCausalLM")]
    config.save_pretrained(folder)
    return folder / "config.json"


def count(kind: str) -> int:
    """Parameters of the model that transformers builds, each tensor once."""
    prefix, _ = BUILT[kind]
    with torch.device("meta"):
        model = getattr(transformers, HEAD.get(prefix, f"{prefix}ForCausalLM"))(built(kind))
    return sum({id(each): each.numel() for each in model.parameters()}.values())


@pytest.mark.parametrize("kind", BUILT)
def test_a_config_counts_the_parameters_of_its_model(kind: str, tmp_path: Path) -> None:
    found = hf_config.read(written(kind, tmp_path))
    # left out: the gate of a shared expert (one number per hidden unit and layer), the bias of Phi's output layer
    left_out = {"qwen2_moe": 3 * 64, "phi": 640}.get(kind, 0)
    buffers = {"deepseek_v3": 2 * 8, "deepseek_v3 without q_lora": 2 * 8}.get(kind, 0)  # kept as buffers there
    assert found.parameters == count(kind) - left_out + buffers


def test_every_family_is_built() -> None:
    assert {kind.split()[0] for kind in BUILT} | {"gemma3"} == set(FAMILIES)


@pytest.mark.parametrize("model", models(), ids=lambda model: model.id)
def test_the_parts_add_up_to_the_whole(model: ModelConfig) -> None:
    parts, experts = model.parts(), model.moe.experts if model.moe else 0
    whole = parts.attention + parts.mlp + experts * parts.expert + parts.other + parts.lm_head + parts.embedding
    assert whole == model.parameters


def mistral(**more: object) -> dict[str, Any]:
    return {"model_type": "mistral", **SMALL, **more}


def refused(config: Mapping[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        hf_config.parse(config)
    assert "\n" not in caught.value.message + (caught.value.hint or "")
    return caught.value.message


@pytest.mark.parametrize("missing", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size",
                                     "intermediate_size"])  # fmt: skip
def test_what_is_missing_is_named(missing: str) -> None:
    config = mistral()
    del config[missing]
    assert missing in refused(config)


@pytest.mark.parametrize("value", [0, -1, 2**40, 10**400, 1.5, True, "32", [1], {}])
def test_a_number_out_of_bounds_is_refused(value: object) -> None:
    assert "num_hidden_layers is no whole number" in refused(mistral(num_hidden_layers=value))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "mamba2", **SMALL}, "'mamba2' is not known"),
        ({"architectures": ["RwkvForCausalLM"], **SMALL}, "'RwkvForCausalLM' is not known"),
        ({"architectures": ["a\nb\x1b[31m" * 40], **SMALL}, "'a?b?[31m"),
        ({}, "neither model_type nor architectures"),
        (mistral(hidden_size=66), "does not divide into heads"),
        ({"model_type": "qwen3_moe", **OWN_HEADS, **EXPERTS, "decoder_sparse_step": 2}, "dense layers between"),
        ({"model_type": "qwen3_moe", **OWN_HEADS, **EXPERTS, "mlp_only_layers": [2]}, "dense layers between"),
        ({"model_type": "qwen3_moe", **OWN_HEADS, **EXPERTS, "mlp_only_layers": "all"}, "dense layers between"),
        ({"model_type": "qwen3_moe", **OWN_HEADS, **EXPERTS, "num_experts_per_tok": 9}, "do not fit together"),
        ({"model_type": "qwen2_moe", **SMALL, **EXPERTS, "shared_expert_intermediate_size": 65}, "no multiple"),
        ({"model_type": "opt", **SMALL, "word_embed_proj_dim": 32}, "word_embed_proj_dim"),
        ({"model_type": "gemma2", **OWN_HEADS, "layer_types": ["full_attention", "full_attention",
                                                               "sliding_attention"]}, "no regular pattern"),
        ({"model_type": "gemma2", **OWN_HEADS, "layer_types": ["mamba"] * 3}, "layer_types are not covered"),
        ({"model_type": "gemma2", **OWN_HEADS, "layer_types": ["full_attention"]}, "layer_types are not covered"),
        ({"model_type": "qwen2", **SMALL, "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
         "max_window_layers"),
        (mistral(quantization_config={"quant_method": "hqq"}), "'hqq' is not known"),
        (mistral(quantization_config={"quant_method": "gptq", "bits": 1000}), "no usable bits"),
        (mistral(quantization_config={"quant_method": "compressed-tensors", "config_groups": 3}), "no weight format"),
    ],
)  # fmt: skip
def test_what_is_not_covered_is_refused(config: dict[str, Any], said: str) -> None:
    assert said in refused(config)


@pytest.mark.parametrize(
    ("more", "window"),
    [
        ({"sliding_window": 4096}, SlidingWindow(4096, None)),
        ({"sliding_window": None}, None),
        ({"sliding_window": 0}, None),
        ({"model_type": "qwen2", "sliding_window": 512}, None),
        ({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": True, "max_window_layers": 0},
         SlidingWindow(512, None)),
        ({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": True, "max_window_layers": 28}, None),
        ({"model_type": "gemma2"}, SlidingWindow(4096, 2)),
        ({"model_type": "gemma3_text", "sliding_window": 512}, SlidingWindow(512, 6)),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 3}, SlidingWindow(4096, 3)),
        ({"model_type": "gemma3_text", "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
         SlidingWindow(4096, 2)),
    ],
)  # fmt: skip
def test_windows_by_layer(more: dict[str, Any], window: SlidingWindow | None) -> None:
    assert hf_config.parse(mistral(**more)).sliding_window == window


@pytest.mark.parametrize(
    ("settings", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, 4 + 20 / 32),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8.0),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 16384),
        ({"quant_method": "fp8"}, 8.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 4.127),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8.0),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {
            "num_bits": 4, "group_size": 128, "type": "int", "strategy": "group"}}}}, 4.125),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {
            "num_bits": 8, "group_size": None, "type": "float", "strategy": "channel"}}}}, 8.0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
    ],
)  # fmt: skip
def test_quantised_weights_take_their_scales_along(settings: dict[str, Any], bits: float) -> None:
    found = hf_config.parse(mistral(quantization_config=settings)).weight_bits
    assert (found.attention, found.mlp) == pytest.approx((bits, bits), rel=1e-3)
    assert (found.lm_head, found.embedding, found.other) == (16, 16, 16)
    assert found.quantized


def test_only_the_experts_of_an_mxfp4_model_are_packed() -> None:
    config = {"model_type": "gpt_oss", **OWN_HEADS, "num_local_experts": 8,
              "quantization_config": {"quant_method": "mxfp4"}}  # fmt: skip
    assert hf_config.parse(config).weight_bits == find("gpt-oss-20b").weight_bits
    assert hf_config.parse(config).weight_bits.experts == 4.25


def test_the_language_model_of_a_model_with_eyes() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024}  # fmt: skip
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text,
              "vision_config": {"hidden_size": 1152}, "torch_dtype": "bfloat16"}  # fmt: skip
    found, known = hf_config.parse(config), find("gemma-3-4b")
    assert (found.layers, found.heads, found.kv_heads, found.head_dim) == (34, 8, 4, 256)
    assert found.sliding_window == known.sliding_window
    assert found.tied_embeddings
    assert found.architecture == "Gemma3ForConditionalGeneration"


def test_a_config_of_a_bundled_model_reads_as_that_model() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "torch_dtype": "bfloat16", "max_position_embeddings": 131072, "_name_or_path": "/home/somebody/secret",
    }  # fmt: skip
    found = hf_config.parse(config)
    assert found.parameters == find("llama-3.1-8b").parameters == 8_030_261_248
    assert found.hf_name == "LlamaForCausalLM"
    assert hf_config.parse({**config, "_name_or_path": "owner/name"}).hf_name == "owner/name"


def test_a_name_or_a_path_or_a_folder_is_a_model(tmp_path: Path) -> None:
    assert hf_config.given("gpt2").label == "gpt2"
    assert hf_config.given("Meta-Llama/Llama-3.1-8B").label == "llama-3.1-8b"
    folder = tmp_path / "private" / "tuned"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(mistral()))
    assert hf_config.given(str(folder / "config.json")).label == "config.json"
    assert hf_config.given(str(folder)).label == "tuned"
    with pytest.raises(InputError, match="unknown model") as caught:
        hf_config.given("lama-3.1-8b")
    assert "llama-3.1-8b" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x00\x01\x02", b"[]", b"3", b'"x"', b"{", b"[" * 100_000, b'{"a":' * 50_000, b'{"hidden_size": NaN}',
        b"\xff\xfe{}", b"{}" + b" " * (hf_config.LARGEST_FILE + 1), b'{"vocab_size": ' + b"9" * 10_000 + b"}",
        b'{"text_config": {"model_type": ["x"]}}', b'{"model_type": {"a": 1}}', b'{"architectures": [[]]}',
    ],
    ids=range(15),
)  # fmt: skip
def test_a_hostile_file_is_refused_in_one_line(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "con\nfig.json"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        hf_config.given(str(path))
    shown = f"{caught.value.message} {caught.value.hint}"
    assert "\n" not in shown
    assert len(shown) < 400
    assert str(tmp_path) not in shown


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", tmp_path / "none.json", tmp_path, Path("x" * 5000 + ".json")):
        with pytest.raises(InputError):
            hf_config.given(str(path))


def test_whatever_a_config_holds_it_is_a_model_or_an_input_error() -> None:
    draw = random.Random(7)
    odd = [None, 0, -1, 1.5, True, "x", "", [], {}, [1], {"a": 1}, 2**70, 64, 3, ["full_attention"]]
    bases = [{"model_type": built(kind).model_type, **built(kind).to_dict()} for kind in BUILT]
    for _ in range(3000):
        config = dict(draw.choice(bases))
        for key in draw.sample(sorted(config), 3):
            config[key] = draw.choice(odd)
        try:
            found = hf_config.parse(config)
        except InputError:
            continue
        assert found.parameters > 0
