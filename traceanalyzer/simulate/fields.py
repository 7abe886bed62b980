"""The parts of a Kineto event that repeat: an op's recorded arguments, a kernel's launch configuration, times.

Texts are made once and kept, since the layers of a pass repeat.
What could be wrong: "est. achieved occupancy" here knows registers, threads and blocks, not shared memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache

from traceanalyzer.catalog.gpus import Gpu
from traceanalyzer.simulate.program import Argument, Kernel, Scalar, Tensor

_MOST_KEPT = 8192
_REGISTERS = 65_536
_WARP = 32


def time_us(ns: int) -> str:
    """Microseconds with three decimals, exactly."""
    return f"{ns // 1000}.{ns % 1000:03d}"


@lru_cache(maxsize=65_536)
def quoted(text: str) -> str:
    """The text as JSON."""
    return json.dumps(text)


class Fields:
    """Texts of arguments and launch configurations on one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        """Nothing is kept yet."""
        self._gpu = gpu
        self._arguments: dict[tuple[Argument, ...], str] = {}
        # Keyed by identity, for a kernel's hash costs more than its text; the objects are kept, so no id comes twice.
        self._kernels: dict[int, tuple[Kernel, str]] = {}
        self._most_warps = 2048 // _WARP if gpu.compute_capability in ("7.0", "8.0", "9.0", "10.0", "10.3") else 48

    def arguments(self, arguments: tuple[Argument, ...]) -> str:
        """The recorded inputs of an op, each with a trailing comma and space."""
        text = self._arguments.get(arguments)
        if text is None:
            if len(self._arguments) >= _MOST_KEPT:
                self._arguments.clear()
            text = self._arguments[arguments] = _inputs(arguments)
        return text

    def launching(self, kernel: Kernel) -> str:
        """Registers, shared memory, fill, grid, block and occupancy of a kernel."""
        kept = self._kernels.get(id(kernel))
        if kept is not None:
            return kept[1]
        if len(self._kernels) >= _MOST_KEPT:
            self._kernels.clear()
        text = self._launching(kernel)
        self._kernels[id(kernel)] = kernel, text
        return text

    def _launching(self, kernel: Kernel) -> str:
        blocks = kernel.grid[0] * kernel.grid[1] * kernel.grid[2] / self._gpu.num_sms
        threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
        warps = -(-threads // _WARP)
        fitting = min(self._most_warps // warps, _REGISTERS // max(1, kernel.registers * warps * _WARP)) * warps
        occupancy = 100 * min(fitting, blocks * warps) / self._most_warps
        return (
            f'"registers per thread": {kernel.registers}, "shared memory": {kernel.shared_memory}, '
            f'"blocks per SM": {blocks:.6f}, "warps per SM": {blocks * warps:.6f}, "grid": {list(kernel.grid)}, '
            f'"block": {list(kernel.block)}, "est. achieved occupancy %": {round(occupancy)}'
        )


def _inputs(arguments: Sequence[Argument]) -> str:
    concrete = [quoted(one.value) if isinstance(one, Scalar) else '""' for one in arguments]
    kinds = [quoted("TensorList" if isinstance(one, tuple) else _kind(one)) for one in arguments]
    strides = [_nested(one, _strides) for one in arguments]
    dims = [_nested(one, _dims) for one in arguments]
    return (
        f'"Concrete Inputs": [{", ".join(concrete)}], "Input type": [{", ".join(kinds)}], '
        f'"Input Strides": [{", ".join(strides)}], "Input Dims": [{", ".join(dims)}], '
    )


def _kind(one: Tensor | Scalar) -> str:
    return one.kind if isinstance(one, Scalar) else one.dtype


def _nested(one: Argument, of: Callable[[Tensor], Sequence[int]]) -> str:
    """A list of numbers for a tensor, of lists for a list of tensors, and empty for a scalar, as JSON."""
    if isinstance(one, tuple):
        return f"[{', '.join(str(list(of(tensor))) for tensor in one)}]"
    return str(list(of(one))) if isinstance(one, Tensor) else "[]"


def _dims(one: Tensor) -> Sequence[int]:
    return one.dims


def _strides(one: Tensor) -> Sequence[int]:
    if one.strides is not None:
        return one.strides
    strides: list[int] = []
    step = 1
    for size in reversed(one.dims):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]
