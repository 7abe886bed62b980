"""Ops that launch nothing: views, as PyTorch records them with their children."""

from __future__ import annotations

import math

from traceanalyzer.simulate.program import Op, Scalar, Tensor
from traceanalyzer.simulate.shard import NONE, Shard, strides_of, words


def transpose(shard: Shard, tensor: Tensor, first: int, second: int) -> tuple[Op, Tensor]:
    """aten::transpose and the view it makes."""
    rank = len(tensor.dims)
    order = list(range(rank))
    order[first % rank], order[second % rank] = order[second % rank], order[first % rank]
    strides = strides_of(tensor)
    result = Tensor(tuple(tensor.dims[i] for i in order), tensor.dtype, tuple(strides[i] for i in order))
    inner = as_strided(shard, tensor, result)
    return Op("aten::transpose", (tensor, Scalar(str(first)), Scalar(str(second))), (inner,), shard.view_ns), result


def as_strided(shard: Shard, tensor: Tensor, result: Tensor) -> Op:
    """aten::as_strided, which every view ends in."""
    lists = (
        Scalar(words(result.dims), "ScalarList"),
        Scalar(words(strides_of(result)), "ScalarList"),
    )
    return Op("aten::as_strided", (tensor, *lists, NONE), (), shard.view_ns)


def t(shard: Shard, tensor: Tensor) -> tuple[Op, Tensor]:
    """aten::t of a matrix."""
    inner, result = transpose(shard, tensor, 0, 1)
    return Op("aten::t", (tensor,), (inner,), shard.view_ns), result


def reshape(shard: Shard, tensor: Tensor, dims: tuple[int, ...], name: str = "aten::view") -> tuple[Op, Tensor]:
    """aten::view (or _unsafe_view) of a contiguous tensor; "aten::reshape" wraps one."""
    arguments = (tensor, Scalar(words(dims), "ScalarList"))
    if name == "aten::reshape":
        return Op(name, arguments, (Op("aten::view", arguments, (), shard.view_ns),), shard.view_ns), Tensor(
            dims, tensor.dtype
        )
    return Op(name, arguments, (), shard.view_ns), Tensor(dims, tensor.dtype)


def split(shard: Shard, tensor: Tensor, widths: tuple[int, ...]) -> tuple[Op, tuple[Tensor, ...]]:
    """aten::split_with_sizes along the last axis, and the views it makes."""
    strides = strides_of(tensor)
    parts = tuple(Tensor((*tensor.dims[:-1], width), tensor.dtype, strides) for width in widths)
    arguments = (tensor, Scalar(words(widths), "ScalarList"), Scalar("-1"))
    return Op("aten::split_with_sizes", arguments, (), shard.view_ns), parts


def expand(shard: Shard, tensor: Tensor, dims: tuple[int, ...]) -> tuple[Op, Tensor]:
    """aten::expand: repeated axes have stride 0."""
    strides = tuple(
        0 if size == 1 and wanted != 1 else stride
        for size, wanted, stride in zip(tensor.dims, dims, strides_of(tensor), strict=True)
    )
    result = Tensor(dims, tensor.dtype, strides)
    arguments = (tensor, Scalar(words(dims), "ScalarList"), Scalar("False"))
    return Op("aten::expand", arguments, (as_strided(shard, tensor, result),), shard.view_ns), result


def numel(tensor: Tensor) -> int:
    """How many numbers a tensor has."""
    return math.prod(tensor.dims)
