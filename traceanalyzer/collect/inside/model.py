"""What a loaded Hugging Face model is: its sizes, the bytes of its weights, and of its cache once there is one.

    KV bytes per token = sum over layers of heads x (key size + value size) x bytes per element

from the shapes of the cache itself, so that grouped, latent and mixed layers are what they are. Weights are counted by
address: tied ones once, packed ones as they lie in memory. What could be wrong: parameters that were moved off to disk
count as if they were here; a layer without keys (a state space) adds nothing to the bytes per token.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Iterable, Iterator

from . import architecture
from .architecture import known


def facts(model: Any) -> dict[str, Any]:
    """The facts of a model, named as in the hello file. Reads shapes and addresses, no value."""
    config = model.config
    text = _text_config(config)
    name = getattr(config, "_name_or_path", None)
    found = architecture.of_config(text, name if isinstance(name, str) and not _is_path(name) else None)
    found["architecture"] = type(model).__name__
    quantization = _quantization(config)
    tensors = list(_tensors(model, buffers=quantization is not None))
    found.update(
        known(
            dtype=architecture.dtype_name(getattr(model, "dtype", None)),
            attention=getattr(text, "_attn_implementation", None) or getattr(config, "_attn_implementation", None),
            quantization=quantization,
            parameters=_parameters(model, quantization),
        ),
        weight_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
    )
    return found


def cache_facts(cache: Any) -> dict[str, Any]:
    """What a filled cache says: its type, bytes per token of context, and the bytes set aside if its size is fixed."""
    cache = getattr(cache, "self_attention_cache", cache)
    layers = [layer for layer in getattr(cache, "layers", ()) if _has_keys(layer)]
    if not layers or any(hasattr(layer, "_quantized_keys") for layer in layers):
        return {}
    per_token = sum(
        tensor.shape[1] * tensor.shape[3] * tensor.element_size()
        for layer in layers
        for tensor in (layer.keys, layer.values)
    )
    found = {"kv_bytes_per_token": per_token, "kv_dtype": architecture.dtype_name(layers[0].keys.dtype)}
    if all(hasattr(layer, "max_cache_len") for layer in layers):
        found["kv_reserved_bytes"] = architecture.storage_bytes([(layer.keys, layer.values) for layer in layers])
    return found


def _has_keys(layer: Any) -> bool:
    return all(
        getattr(tensor, "ndim", 0) == 4 for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None))
    )


def _text_config(config: Any) -> Any:
    """Of the language model, where a model has several."""
    find = getattr(config, "get_text_config", None)
    return find() if callable(find) else getattr(config, "text_config", config)


def _is_path(name: str) -> bool:
    """Whether a model came from this machine's disk rather than from the hub, where names are `owner/name`."""
    return name.count("/") > 1 or "\\" in name or name.startswith((".", "/", "~")) or os.path.isdir(name)


def _quantization(config: Any) -> str | None:
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    return str(getattr(method, "value", method)) if method else type(settings).__name__


def _tensors(model: Any, buffers: bool) -> Iterator[Any]:
    """The tensors in which the weights lie, each once. Some quantized layers keep theirs in buffers."""
    torch, seen = sys.modules["torch"], set()
    plain = (torch.Tensor, torch.nn.Parameter)
    for tensor in _flat([*model.parameters(), *(model.buffers() if buffers else ())]):
        # Without memory of its own (on `meta`, where a part was moved off), or of a kind that forbids the question
        # (fake tensors), a tensor is told by identity.
        address = (tensor.data_ptr() if type(tensor) in plain else 0) or id(tensor)
        if (address, tensor.numel()) not in seen:
            seen.add((address, tensor.numel()))
            yield tensor


def _flat(tensors: Iterable[Any]) -> Iterator[Any]:
    """Of a tensor that stands for others (torchao's), those others."""
    for tensor in tensors:
        parts = getattr(tensor, "__tensor_flatten__", None)
        if callable(parts):
            yield from _flat([getattr(tensor, name) for name in parts()[0]])
        else:
            yield tensor


def _parameters(model: Any, quantization: str | None) -> int | None:
    """How many weights the model has; None where packed ones do not say how many they stand for."""
    total, seen = 0, set()
    for parameter in model.parameters():
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        shape = getattr(getattr(parameter, "quant_state", None), "shape", None)
        if shape is not None:
            count = 1
            for size in shape:
                count *= int(size)
        elif quantization is not None and not (parameter.is_floating_point() or str(parameter.dtype) == "torch.int8"):
            return None
        else:
            count = parameter.numel()
        total += count
    packed = quantization is not None and any(
        not buffer.is_floating_point() and buffer.ndim == 2 for buffer in model.buffers()
    )
    return None if packed else total
