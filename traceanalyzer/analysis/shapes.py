"""The argument shapes of one recorded op call, parsed once per distinct text.

PyTorch records `Input Dims`, `Input type`, `Concrete Inputs` and `Input Strides` as JSON per op. The reader keeps them
as interned text, so a layer that runs 10,000 times is parsed once. What can go wrong: a TensorList nests one level
deeper than a tensor, an undefined tensor and a scalar are both `[]`, and damaged text must read as unknown, never as
zero.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod

Dims = tuple[int, ...]

MOST_ELEMENTS = 2**53
"""No tensor has more elements than a float counts exactly; a shape beyond that is damage."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What one op call was given, argument by argument.

    `dims[i]` is the shape of argument i: a tuple of ints for a tensor, () for a scalar or nothing, and a tuple of
    tuples for a list of tensors. `types[i]` is the recorded type ("c10::BFloat16", "TensorList", "Scalar", ""),
    `concrete[i]` the recorded value of a non-tensor argument as text ("" for tensors), `strides[i]` like dims.
    """

    dims: tuple[object, ...]
    types: tuple[str, ...]
    concrete: tuple[str, ...]
    strides: tuple[object, ...]

    def tensor(self, index: int) -> Dims | None:
        """The shape of tensor argument `index`, or None where it is no tensor with a recorded shape."""
        if index >= len(self.dims):
            return None
        shape = self.dims[index]
        if not isinstance(shape, tuple) or not shape or not all(isinstance(n, int) for n in shape):
            return None
        return shape

    def tensors(self, index: int) -> tuple[Dims, ...] | None:
        """The shapes of list-of-tensors argument `index`, or None."""
        if index >= len(self.dims):
            return None
        shapes = self.dims[index]
        if not isinstance(shapes, tuple) or not shapes or not all(isinstance(s, tuple) for s in shapes):
            return None
        return shapes

    def type(self, index: int) -> str:
        """The recorded type of argument `index`, or the empty string."""
        return self.types[index] if index < len(self.types) else ""

    def value(self, index: int) -> str:
        """The recorded concrete value of argument `index`, or the empty string."""
        return self.concrete[index] if index < len(self.concrete) else ""

    def stride(self, index: int) -> Dims | None:
        """The strides of tensor argument `index`, or None where not recorded."""
        if index >= len(self.strides):
            return None
        strides = self.strides[index]
        return strides if isinstance(strides, tuple) and all(isinstance(n, int) for n in strides) else None


_INTEGER = re.compile(r"-?[0-9]{1,15}")


def integer(text: str) -> int | None:
    """A recorded value as an integer; None for anything else, such as text that only looks like a number."""
    return int(text) if _INTEGER.fullmatch(text) else None


def numel(shape: Dims) -> int:
    """The number of elements of a shape; a scalar, (), has one."""
    return prod(shape)


def _possible(shape: object) -> bool:
    """Whether a recorded shape, or list of shapes, can be that of tensors."""
    if not isinstance(shape, tuple):
        return False
    if any(isinstance(n, tuple) for n in shape):
        return all(_possible(inner) for inner in shape)
    if not all(type(n) is int and 0 <= n <= MOST_ELEMENTS for n in shape):
        return False
    return prod(shape) <= MOST_ELEMENTS


def _freeze(value: object) -> object:
    return tuple(_freeze(v) for v in value) if isinstance(value, list) else value


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[object, ...]:
    try:
        value = json.loads(text) if text else []
        return tuple(_freeze(v) for v in value) if isinstance(value, list) else ()
    except (ValueError, RecursionError):
        return ()


def signature(dims: str, types: str, concrete: str, strides: str) -> Signature:
    """Parse the four recorded JSON texts of one op.

    Text that cannot be parsed reads as nothing recorded; so do the shapes of a call with one that cannot be.
    """
    shapes = _parsed(dims)
    return Signature(
        dims=shapes if all(map(_possible, shapes)) else (),
        types=tuple(str(t) for t in _parsed(types)),
        concrete=tuple(str(c) for c in _parsed(concrete)),
        strides=_parsed(strides),
    )
