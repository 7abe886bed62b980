"""How many tokens a Hugging Face cache holds before a step, from what the host knows: no tensor is read.

A growing cache says it by its shape, a sliding or quantized one by a number. A static one keeps its length in a tensor
on the device, and a state space has none: for them the tokens that went in are counted here, and `watch` sees when the
cache is emptied or cut.

What could be wrong: a static cache that was filled where no step was seen (a copy of another, a graph that holds the
whole loop) has no known length; nor has one whose layers are changed one by one. A pass that fails is counted as done.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, Callable

from .guard import attempt


class _Count:
    """Tokens in one cache; None: unknown. The reference lets go of the entry with the cache."""

    __slots__ = ("length", "reference")

    def __init__(self, cache: Any, length: int | None) -> None:
        self.length = length
        key = id(cache)
        # At the interpreter's end this module may be empty before the cache goes.
        self.reference = weakref.ref(cache, lambda _, counts=_counts: counts.pop(key, None))  # type: ignore[misc]


_counts: dict[int, _Count] = {}


_SHAPE, _NUMBER, _COUNT, _NONE = range(4)
_reads: dict[type, int] = {}
"""Kind of layer -> how it tells its length."""
_plain: set[type] = set()
"""Kinds of caches that are a list of layers."""


def length(cache: Any, tokens: int) -> int | None:
    """Tokens per sequence that the cache holds now; None: unknown.

    Args:
        cache: of any kind, not None; a tuple of tensors in older releases.
        tokens: that this step adds to each sequence.
    """
    if type(cache) not in _plain:
        inner = getattr(cache, "self_attention_cache", None)
        if inner is not None:
            return length(inner, tokens)
        if getattr(cache, "layers", None) is None:
            return _of_older_release(cache, tokens)
        _plain.add(type(cache))
    for layer in cache.layers:
        kind = type(layer)
        read = _reads[kind] if kind in _reads else _reads.setdefault(kind, _how(layer.__dict__))
        if read == _SHAPE:
            keys = layer.keys
            if keys is None:
                return 0
            shape = keys.shape  # of one dimension where it is empty
            return shape[2] if len(shape) == 4 else 0
        if read == _NUMBER:
            fields = layer.__dict__
            return int(fields.get("cumulative_length_int", fields.get("cumulative_length")))
        if read == _COUNT:
            return _counted(cache, tokens)
    # No layer has keys: a state space; or there are no layers yet, they are added as the first pass reaches them.
    return _counted(cache, tokens) if cache.layers else 0


def _how(fields: dict[str, Any]) -> int:
    if type(fields.get("cumulative_length_int", fields.get("cumulative_length"))) is int:
        return _NUMBER
    if "max_cache_len" in fields:
        return _COUNT
    return _SHAPE if "keys" in fields else _NONE


def _of_older_release(cache: Any, tokens: int) -> int | None:
    if isinstance(cache, (tuple, list)):
        return int(cache[0][0].shape[-2]) if cache and cache[0] is not None else 0
    seen = getattr(cache, "_seen_tokens", None)
    if type(seen) is int:
        return seen
    keys = getattr(cache, "key_cache", None)
    if isinstance(keys, list) and not hasattr(cache, "max_cache_len"):
        return int(keys[0].shape[-2]) if keys and keys[0].dim() == 4 else 0
    return _counted(cache, tokens)


def _counted(cache: Any, tokens: int) -> int | None:
    found = _counts.get(id(cache))
    if found is None:
        found = _counts[id(cache)] = _Count(cache, None if _filled(cache) else 0)
    before = found.length
    if before is not None:
        found.length = before + tokens
    return before


def _filled(cache: Any) -> bool:
    """Whether a cache that was never seen may hold tokens already."""
    layers = getattr(cache, "layers", None) or ()
    return any(getattr(layer, "is_initialized", False) is True for layer in layers)


def set_length(cache: Any, tokens: int | None) -> None:
    """What is known of a counted cache from elsewhere, once the step that runs now is done."""
    cache = getattr(cache, "self_attention_cache", cache)
    if id(cache) in _counts:
        _counts[id(cache)].length = tokens


def watch(module: Any) -> None:
    """See when a cache is emptied, cut or set up; called with `transformers.cache_utils`."""
    compiling = sys.modules["torch"].compiler.is_compiling
    for name, change in (("reset", _emptied), ("early_initialization", _emptied), ("crop", _cut)):
        for owner in {each for each in vars(module).values() if isinstance(each, type) and name in vars(each)}:
            if hasattr(owner, "update") and not owner.__name__.endswith(("Layer", "Mixin")):
                setattr(owner, name, _followed(getattr(owner, name), change, compiling))


def _followed(original: Callable[..., Any], change: Callable[..., None], compiling: Callable[[], bool]) -> Any:
    @functools.wraps(original)
    def followed(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not compiling():
            attempt("cache", None, change, self, *args)
        return result

    return followed


def _emptied(cache: Any, *_: Any) -> None:
    _counts[id(cache)] = _Count(cache, 0)


def _cut(cache: Any, tokens: Any = None, *_: Any) -> None:
    """Drop -n tokens or, in older releases, keep n."""
    found = _counts.get(id(cache))
    if found is not None and found.length is not None:
        known = type(tokens) is int
        found.length = (min(found.length, tokens) if tokens > 0 else max(found.length + tokens, 0)) if known else None
