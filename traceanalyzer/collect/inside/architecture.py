"""What a model's configuration and its tensors say of it, for the hello file: sizes and names, no path and no value.

Engines keep the configuration of the Hugging Face hub, whose names differ between architectures. What could be wrong
with it: a configuration that leaves a size to its class' default and does not carry it gives no such fact; one kind of
layer stands for all where a model mixes several.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Iterable, Iterator

_SIZES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "moe_topk", "top_k_experts"),
    "kv_lora_rank": ("kv_lora_rank",),
}
"""Fact -> the names that configurations give it, the commonest first."""


def known(**facts: Any) -> dict[str, Any]:
    """The facts that are known: those that are not None."""
    return {name: value for name, value in facts.items() if value is not None}


def of_config(config: Any, name: Any) -> dict[str, Any]:
    """What a configuration of the hub's kind says.

    Args:
        config: of the language model, where a model has several.
        name: what the model was loaded as; only what follows the last slash is kept.
    """
    found: dict[str, Any] = {}
    if isinstance(name, str) and name:
        found["name"] = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    classes = getattr(config, "architectures", None)
    if isinstance(classes, (list, tuple)) and classes:
        found["architecture"] = str(classes[0])
    sizes = {fact: size for fact, names in _SIZES.items() if (size := _size(config, names)) is not None}
    if "kv_lora_rank" not in sizes and "heads" in sizes:
        sizes.setdefault("kv_heads", 1 if getattr(config, "multi_query", False) is True else sizes["heads"])
        if "hidden" in sizes:
            sizes.setdefault("head_dim", sizes["hidden"] // sizes["heads"])
    tied = getattr(config, "tie_word_embeddings", None)
    if isinstance(tied, bool):
        found["tied_embeddings"] = tied
    shape = json.dumps({**sizes, "architecture": found.get("architecture"), "tied": tied}, sort_keys=True, default=str)
    if sizes:
        found["fingerprint"] = hashlib.sha256(shape.encode()).hexdigest()[:12]
    return {**found, **sizes}


def _size(config: Any, names: Iterable[str]) -> int | None:
    for name in names:
        size = getattr(config, name, None)
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            return size
    return None


def dtype_name(dtype: Any) -> str | None:
    """`torch.bfloat16` and `bfloat16` as `bfloat16`; None for none."""
    return None if dtype is None else str(dtype).rpartition("torch.")[2]


def weight_bytes(*modules: Any) -> dict[str, int]:
    """Bytes of the parameters on this rank, each counted once; nothing where there is no module."""
    sizes = [each.numel() * each.element_size() for each in _parameters(modules)]
    return {"weight_bytes": sum(sizes)} if sizes else {}


def count_parameters(*modules: Any) -> dict[str, int]:
    """How many parameters this rank holds: the model's, if it is alone and keeps one number per element."""
    counts = [each.numel() for each in _parameters(modules)]
    return {"parameters": sum(counts)} if counts else {}


def _parameters(modules: Iterable[Any]) -> Iterator[Any]:
    seen: set[int] = set()
    for module in modules:
        for each in module.parameters() if hasattr(module, "parameters") else ():
            if id(each) not in seen:
                seen.add(id(each))
                yield each


def storage_bytes(tensors: Any) -> int:
    """Bytes of the allocations behind tensors, nested lists of them included; views of one allocation count once.

    Address and size of an allocation are kept on the host: nothing waits for the device.
    """
    allocations: dict[int, int] = {}
    for tensor in _flat(tensors):
        storage = tensor.untyped_storage()
        allocations[storage.data_ptr()] = storage.nbytes()
    return sum(allocations.values())


def _flat(tensors: Any) -> Iterator[Any]:
    if isinstance(tensors, dict):
        tensors = list(tensors.values())
    if not isinstance(tensors, (list, tuple)):
        if hasattr(tensors, "untyped_storage"):
            yield tensors
        return
    for tensor in tensors:
        yield from _flat(tensor)
