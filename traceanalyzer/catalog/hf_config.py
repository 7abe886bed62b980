"""Reads a model's `config.json` in the format of Hugging Face, of the families in `hf_families`.

A config holds what differs from its class' defaults, so the defaults that matter stand in the table. The file is
somebody else's: its size and every number in it are bounded, and whatever the closed forms of `models.ModelConfig` do
not cover is refused in one line. What could be wrong: a config of a known architecture with remote code of its own can
mean another model; vision and audio parts are left out; so are multi-token-prediction layers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traceanalyzer.catalog import weight_bits
from traceanalyzer.catalog.hf_families import FAMILIES, TYPE_OF, Family
from traceanalyzer.catalog.models import Experts, LatentAttention, ModelConfig, SlidingWindow, find, is_known
from traceanalyzer.errors import InputError

LARGEST_FILE = 4 << 20
"""Bytes; configs with lists of quantised modules reach some hundred kilobytes."""
_HINT = "a config.json as published with the model is needed, or a name of the catalogue"
_MOST: Mapping[str, int] = {
    "layers": 1024, "hidden": 1 << 18, "heads": 1 << 14, "kv_heads": 1 << 14, "head_dim": 1 << 14, "ffn": 1 << 22,
    "vocab": 1 << 24, "experts": 1 << 14, "experts_per_token": 1 << 10, "expert_ffn": 1 << 22, "max_position": 1 << 30,
    "window": 1 << 30, "rank": 1 << 18,
}  # fmt: skip
_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "ffn_dim", "n_inner"),
    "vocab": ("vocab_size",),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "experts_per_token"),
    "expert_ffn": ("moe_intermediate_size",),
    "max_position": ("max_position_embeddings", "n_positions"),
    "window": ("sliding_window",),
}
"""Field -> the names that configs give it."""


@dataclass(frozen=True, slots=True)
class GivenModel:
    """A model that the user named: `label` is what may be shown (a bundled name, or a file's base name)."""

    label: str
    config: ModelConfig


def given(text: str) -> GivenModel:
    """The model that an option means: a name of the catalogue, a config file, or a folder that holds one.

    Raises:
        InputError: it is none of these, or the config cannot be used.
    """
    if is_known(text):
        model = find(text)
        return GivenModel(model.id, model)
    path = Path(text)
    try:
        if path.is_dir():
            return GivenModel(path.name or "config.json", read(path / "config.json"))
        if path.is_file() or path.suffix.lower() == ".json":
            return GivenModel(path.name, read(path))
    except (OSError, ValueError) as error:
        raise InputError("--model: the path cannot be used") from error
    model = find(text)
    return GivenModel(model.id, model)


def read(path: Path) -> ModelConfig:
    """The model of a config file.

    Raises:
        InputError: it cannot be read, is no config, or is one of a model that is not covered.
    """
    name = _shown(path.name)
    try:
        if not path.exists():
            raise InputError(f"{name} does not exist", _HINT)
        if not path.is_file():
            raise InputError(f"{name} is no regular file", _HINT)
        with path.open("rb") as stream:
            data = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}", _HINT) from error
    if len(data) > LARGEST_FILE:
        raise InputError(f"{name} is larger than any model config", _HINT)
    try:
        config = json.loads(data.decode("utf-8-sig"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is no JSON", _HINT) from error
    if not isinstance(config, dict):
        raise InputError(f"{name} is no model config", _HINT)
    try:
        return parse(config)
    except InputError as error:
        raise InputError(f"{name}: {error.message}", error.hint or _HINT) from error


def parse(config: Mapping[str, Any]) -> ModelConfig:
    """The model that a decoded config describes.

    Raises:
        InputError: its architecture is not known, or something it needs is missing, out of bounds or not covered.
    """
    text, architecture = _text_part(config)
    kind = _kind(text, architecture)
    given = {key for key, value in text.items() if value is not None or key == "q_lora_rank"}
    said = {name for names in _NAMES.values() if given.intersection(names) for name in names} | given
    defaults = {key: value for key, value in FAMILIES[kind].defaults.items() if key not in said}
    values = {**defaults, **{key: text[key] for key in given}}
    return _config(FAMILIES[kind], kind, values, architecture, config)


def _config(
    family: Family, kind: str, values: Mapping[str, Any], architecture: str, whole: Mapping[str, Any]
) -> ModelConfig:
    layers, hidden = _needed(values, "layers"), _needed(values, "hidden")
    heads, vocab = _needed(values, "heads"), _needed(values, "vocab")
    if kind == "opt" and values.get("word_embed_proj_dim", hidden) != hidden:
        raise InputError("its embedding has another width than its layers (word_embed_proj_dim), which is not covered")
    dtype = _word(values, "dtype") or _word(values, "torch_dtype") or _word(whole, "torch_dtype") or "bfloat16"
    moe = _experts(family, kind, values, layers) if family.routed else None
    position = _number(values, "max_position") or 0
    quantization, bits = _quantization(values, whole, dtype)
    latent = _latent(values) if family.latent else None
    ffn = _number(values, "ffn") or (4 * hidden if kind == "gpt2" else moe.ffn if moe else None)
    if ffn is None:
        raise InputError(f"it has no {_NAMES['ffn'][0]}", _HINT)
    return ModelConfig(
        id=architecture,
        hf_name=_name(whole) or architecture,
        aliases=(),
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_number(values, "kv_heads") or heads,
        head_dim=None if latent else _number(values, "head_dim") or _divided(hidden, heads),
        ffn=ffn,
        vocab=vocab,
        mlp_gated=family.gated,
        tied_embeddings=_flag(values, whole, "tie_word_embeddings", family.tied),
        qkv_bias=_asked(family.qkv_bias, values),
        o_bias=_asked(family.o_bias, values),
        mlp_bias=_asked(family.mlp_bias, values),
        qk_norm=family.qk_norm,
        attention_sinks=family.sinks,
        norm=family.norm,
        norms_per_layer=family.norms,
        parallel_attention_mlp=family.parallel,
        learned_positions=0 if family.position_rows is None else position + family.position_rows,
        sliding_window=_windows(family, values, layers),
        mla=latent,
        moe=moe,
        max_position=position,
        dtype=dtype,
        weight_quantization=quantization,
        published_parameters=None,
        published_exact=False,
        published_source=None,
        sources=("config.json",),
        confidence="given",
        note=None,
        weight_bits=bits,
    )


def _text_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The config of the language model, where a model has several parts, and the architecture's name."""
    named = config.get("architectures")
    outer = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None
    nested = config.get("text_config") or config.get("llm_config")
    if not isinstance(nested, dict):
        return config, _shown(outer or str(config.get("model_type") or ""))
    inner = nested.get("architectures")
    named_inside = inner[0] if isinstance(inner, list) and inner and isinstance(inner[0], str) else None
    return nested, _shown(outer or named_inside or str(nested.get("model_type") or ""))


def _kind(text: Mapping[str, Any], architecture: str) -> str:
    kind = text.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        return kind
    if kind is None and architecture in TYPE_OF:
        return TYPE_OF[architecture]
    shown = _shown(str(kind)) if isinstance(kind, str) and kind else architecture
    if not shown:
        raise InputError("it has neither model_type nor architectures", _HINT)
    raise InputError(f"architecture {shown!r} is not known", f"known model types are {', '.join(FAMILIES)}")


def _experts(family: Family, kind: str, values: Mapping[str, Any], layers: int) -> Experts | None:
    count = _number(values, "experts")
    if count is None and family.latent:
        return None
    chosen, width = _needed(values, "experts_per_token"), _number(values, "expert_ffn") or _needed(values, "ffn")
    if count is None or chosen > count:
        raise InputError("its numbers of experts do not fit together", _HINT)
    if any(values.get(name) not in (None, 1) for name in ("decoder_sparse_step", "moe_layer_freq")):
        raise InputError("it has dense layers between layers of experts, which is not covered")
    dense = values.get("first_k_dense_replace", 0) if family.latent else 0
    only = values.get("mlp_only_layers") or []
    if only != list(range(len(only))) if isinstance(only, list) else True:
        raise InputError("it has dense layers between layers of experts, which is not covered")
    dense = _whole("first_k_dense_replace", dense, 0, layers) or len(only)
    return Experts(
        experts=count,
        experts_per_token=chosen,
        ffn=width,
        shared_experts=_shared(kind, values, width),
        first_dense_layers=dense,
        router_bias=family.router_bias,
        expert_bias=family.expert_bias,
    )


def _shared(kind: str, values: Mapping[str, Any], width: int) -> int:
    """Shared experts, each as wide as a routed one."""
    if kind == "qwen2_moe":
        shared = _whole("shared_expert_intermediate_size", values["shared_expert_intermediate_size"], 0, 1 << 22)
        if shared % width:
            raise InputError("its shared expert is no multiple of the others in width, which is not covered")
        return shared // width
    return _whole("n_shared_experts", values.get("n_shared_experts") or 0, 0, 1 << 10)


def _latent(values: Mapping[str, Any]) -> LatentAttention:
    most, rank = _MOST["rank"], values.get("q_lora_rank")
    return LatentAttention(
        q_lora_rank=None if rank is None else _whole("q_lora_rank", rank, 1, most),
        kv_lora_rank=_whole("kv_lora_rank", values["kv_lora_rank"], 1, most),
        qk_nope=_whole("qk_nope_head_dim", values["qk_nope_head_dim"], 1, most),
        qk_rope=_whole("qk_rope_head_dim", values["qk_rope_head_dim"], 1, most),
        v_head_dim=_whole("v_head_dim", values["v_head_dim"], 1, most),
    )


def _windows(family: Family, values: Mapping[str, Any], layers: int) -> SlidingWindow | None:
    size = _number(values, "window") if values.get("sliding_window") else None
    if family.windows == "never" or size is None:
        return None
    if family.windows == "asked" and values.get("use_sliding_window") is not True:
        return None
    kinds = values.get("layer_types")
    if not isinstance(kinds, list):
        return _by_rule(family, values, size, layers)
    full = [i for i, one in enumerate(kinds) if one == "full_attention"]
    if len(kinds) != layers or any(one not in ("full_attention", "sliding_attention") for one in kinds):
        raise InputError("its layer_types are not covered")
    if len(full) == layers:
        return None
    every = full[0] + 1 if full else None
    if every is not None and full != list(range(every - 1, layers, every)):
        raise InputError("its layer_types follow no regular pattern, which is not covered")
    return SlidingWindow(size, every)


def _by_rule(family: Family, values: Mapping[str, Any], size: int, layers: int) -> SlidingWindow | None:
    """Which layers look back only so far, where the config lists none."""
    if family.windows == "every":
        every = values.get("sliding_window_pattern", family.full_every)
        return SlidingWindow(size, _whole("sliding_window_pattern", every, 1, 1024))
    if family.windows == "asked":
        first = _whole("max_window_layers", values.get("max_window_layers", 28), 0, 1 << 20)
        if 0 < first < layers:
            raise InputError("only its last layers have a window (max_window_layers), which is not covered")
        return None if first >= layers else SlidingWindow(size, None)
    return SlidingWindow(size, None)


def _quantization(
    values: Mapping[str, Any], whole: Mapping[str, Any], dtype: str
) -> tuple[str | None, weight_bits.WeightBits]:
    settings = values.get("quantization_config") or whole.get("quantization_config")
    settings = settings or values.get("compression_config") or whole.get("compression_config")
    if not isinstance(settings, dict):
        return None, weight_bits.plain(weight_bits.bits_of(dtype) or 16)
    bits, word = weight_bits.of_config(settings, dtype)
    return word, bits


def _needed(values: Mapping[str, Any], name: str) -> int:
    found = _number(values, name)
    if found is None:
        raise InputError(f"it has no {_NAMES[name][0]}", _HINT)
    return found


def _number(values: Mapping[str, Any], name: str) -> int | None:
    key = next((key for key in _NAMES[name] if values.get(key) is not None), None)
    return None if key is None else _whole(key, values[key], 1, _MOST[name])


def _whole(key: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{key} is no whole number from {least} to {most:,}")
    return value


def _divided(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise InputError("its hidden size does not divide into heads, and it has no head_dim")
    return hidden // heads


def _asked(setting: bool | str, values: Mapping[str, Any]) -> bool:
    """A fixed trait of the family, or the flag of that name in the config (off where it is not there)."""
    return setting if isinstance(setting, bool) else values.get(setting) is True


def _flag(values: Mapping[str, Any], whole: Mapping[str, Any], key: str, default: bool) -> bool:
    found = values.get(key, whole.get(key))
    return found if isinstance(found, bool) else default


def _word(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    return value.removeprefix("torch.")[:20] if isinstance(value, str) and weight_bits.bits_of(value) else None


def _name(config: Mapping[str, Any]) -> str | None:
    """The model's name on the hub; a path on somebody's disk is nobody's business."""
    name = config.get("_name_or_path")
    if not isinstance(name, str) or name.count("/") > 1 or name.startswith((".", "/", "~")) or "\\" in name:
        return None
    return _shown(name) or None


def _shown(text: str) -> str:
    """Somebody else's text, fit for one line."""
    return "".join(char if char.isprintable() else "?" for char in text[:80])


def _no_number(text: str) -> float:
    raise ValueError(text)
