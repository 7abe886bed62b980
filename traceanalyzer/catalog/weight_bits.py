"""How many bits a weight takes where it is stored, by what it belongs to.

Weights that share a scale carry their part of it: 4-bit weights in groups of 128 with a 16-bit scale and a 4-bit zero
point take 4 + 20 / 128 bits. What could be wrong: checkpoints mix formats layer by layer, and which modules were left
alone stands in lists of patterns, of which only the output layer is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from traceanalyzer.errors import InputError

DTYPE_BITS: Mapping[str, float] = {
    "float64": 64, "float32": 32, "float": 32, "fp32": 32, "bfloat16": 16, "bf16": 16, "float16": 16, "half": 16,
    "fp16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8, "fp8": 8, "int8": 8,
}  # fmt: skip
"""Bits of an element, by the words that configs and recorders use."""

_SHORT: Mapping[str, str] = {
    "float64": "fp64", "float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip
_SCALE, _FLOAT_SCALE = 16.0, 32.0
_MXFP4 = 4 + 8 / 32
_NVFP4 = 4 + 8 / 16
_WIDEST_GROUP = 1 << 20


@dataclass(frozen=True, slots=True)
class WeightBits:
    """Stored bits per weight: of attention, dense MLPs, experts, the output layer, the embedding, and all the rest."""

    attention: float
    mlp: float
    experts: float
    lm_head: float
    embedding: float
    other: float

    @property
    def quantized(self) -> bool:
        """Whether the weights of the layers take fewer bits than those around them."""
        return min(self.attention, self.mlp, self.experts) < self.other


def plain(bits: float) -> WeightBits:
    """Every weight of one size."""
    return WeightBits(bits, bits, bits, bits, bits, bits)


def bits_of(dtype: str | None) -> float | None:
    """Bits of a data type by its name ("torch.bfloat16", "bf16"); None where the name is not known."""
    return DTYPE_BITS.get((dtype or "").lower().removeprefix("torch."))


def short(dtype: str | None) -> str | None:
    """The word by which peaks go ("torch.bfloat16" is "bf16"); None where there is no name."""
    word = (dtype or "").lower().removeprefix("torch.")
    return _SHORT.get(word, word) or None


def of_words(quantization: str | None, dtype: str) -> WeightBits:
    """The bits of a bundled config, from its own words."""
    base = plain(bits_of(dtype) or 16)
    if quantization is None:
        return base
    if quantization.startswith("fp8"):
        return _linear(base, 8 + _FLOAT_SCALE / 128**2)
    if quantization.startswith("mxfp4 on expert weights"):
        return replace(base, experts=_MXFP4)
    raise InputError(f"the catalogue does not say how many bits {quantization[:60]!r} takes")


def of_config(settings: Mapping[str, Any], dtype: str) -> tuple[WeightBits, str]:
    """The bits that a `quantization_config` stands for, and a word for the format.

    Args:
        settings: the config's `quantization_config`.
        dtype: of the weights that are not quantised.

    Raises:
        InputError: the method, or what it needs to be told, is not known.
    """
    base = plain(bits_of(dtype) or 16)
    method = str(settings.get("quant_method") or settings.get("quant_algo") or "").lower()[:40]
    if method == "mxfp4":
        return replace(base, experts=_MXFP4), "mxfp4"
    if method in ("gptq", "awq"):
        bits = _whole(settings, ("bits", "w_bit"), 2, 8)
        found = _linear(base, bits + _shared(_group(settings.get("group_size", settings.get("q_group_size"))), bits))
        return (replace(found, lm_head=found.mlp) if settings.get("lm_head") is True else found), f"{method}-{bits}bit"
    if method == "fp8":
        return _linear(base, 8 + _FLOAT_SCALE / _area(settings.get("weight_block_size"))), "fp8"
    if method in ("bitsandbytes", ""):
        return _bitsandbytes(settings, base)
    if method == "compressed-tensors":
        return _compressed(settings, base)
    if method == "modelopt":
        algorithm = str(settings.get("quant_algo", "")).upper()
        known = {"FP8": 8.0, "NVFP4": _NVFP4, "W4A16_AWQ": 4 + _shared(128, 4)}
        if algorithm in known:
            return _linear(base, known[algorithm]), algorithm.lower()
    raise InputError(f"its quantization method {method!r} is not known")


def _linear(base: WeightBits, bits: float) -> WeightBits:
    return replace(base, attention=bits, mlp=bits, experts=bits)


def _shared(group: int, bits: float) -> float:
    """Bits of a scale and a zero point, divided among the weights of their group."""
    return (_SCALE + bits) / group


def _bitsandbytes(settings: Mapping[str, Any], base: WeightBits) -> tuple[WeightBits, str]:
    if settings.get("load_in_8bit") is True or settings.get("_load_in_8bit") is True:
        return _linear(base, 8.0), "int8"
    if settings.get("load_in_4bit") is True or settings.get("_load_in_4bit") is True:
        twice = settings.get("bnb_4bit_use_double_quant") is True
        scale = 8 / 64 + 32 / (64 * 256) if twice else 32 / 64
        return _linear(base, 4 + scale), str(settings.get("bnb_4bit_quant_type", "fp4"))[:8]
    raise InputError("its quantization_config names no method")


def _compressed(settings: Mapping[str, Any], base: WeightBits) -> tuple[WeightBits, str]:
    groups = settings.get("config_groups")
    named = groups.values() if isinstance(groups, dict) else ()
    weights = [group.get("weights") for group in named if isinstance(group, dict)]
    kinds = {
        (_whole(one, ("num_bits",), 2, 8), _group(one.get("group_size")), str(one.get("type", "int")))
        for one in weights
        if isinstance(one, dict)
    }
    if len(kinds) != 1:
        raise InputError("its quantization_config gives no weight format, or several")
    ((bits, group, kind),) = kinds
    if kind == "float" and bits == 4:
        return _linear(base, 4 + 8 / group), "fp4"
    return _linear(base, bits + _shared(group, 0)), f"{'fp' if kind == 'float' else 'int'}{bits}"


def _whole(settings: Mapping[str, Any], names: tuple[str, ...], least: int, most: int) -> int:
    value = next((settings[name] for name in names if name in settings), None)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"its quantization_config has no usable {names[0]}")
    return value


def _group(value: object) -> int:
    """Weights that share a scale; without a group, a whole row or column does."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _WIDEST_GROUP:
        return value
    return _WIDEST_GROUP


def _area(block: object) -> int:
    """Weights in a block of so many rows and columns that share a scale."""
    sides = [_group(side) for side in block] if isinstance(block, list) else []
    return sides[0] * sides[1] if len(sides) == 2 else _WIDEST_GROUP
