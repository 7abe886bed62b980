"""What a profiler records beside the work when asked: Python frames and the allocator's events.

Neither has a truth of its own. Frames: one per pass, and three for every module that calls ops. Memory: each op that
launches a kernel takes as much as its first input has bytes, in the allocator's blocks, and the block before is freed.
What could be wrong: real stacks are ten times deeper, and real allocations live longer.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceanalyzer.simulate.clock import TimedOp, TimedPass
from traceanalyzer.simulate.fields import quoted, time_us
from traceanalyzer.simulate.program import Kernel, Launch, Tensor

_BLOCK = 512
_SEGMENT = 2 << 20
_FIRST_ADDRESS = 0x7F00_0000_0000
_ITEM_BYTES = {"c10::BFloat16": 2, "c10::Half": 2, "float": 4, "double": 8, "long int": 8, "int": 4}


class Memory:
    """The allocator's events of one process."""

    def __init__(self, pid: int, device: int, held: int) -> None:
        """`held` bytes were allocated before."""
        self._place = f'"pid": {pid}, "tid": {pid}'
        self._device = device
        self._allocated = self._held = -(-held // _BLOCK) * _BLOCK
        self._reserved = -(-held // _SEGMENT) * _SEGMENT
        self._block = 0

    def events(self, timed: TimedPass) -> Iterator[str]:
        """An allocation and the release of the one before for each op that launches a kernel."""
        for op in timed.ops:
            if not any(isinstance(item, Launch) and isinstance(item.work, Kernel) for item in op.op.body):
                continue
            size = _first_bytes(op)
            address = _FIRST_ADDRESS + self._held
            at = op.start + op.op.host_ns // 2
            if self._block:
                yield self._event(at, -self._block, address)
            yield self._event(at, size, address)
            self._block = size

    def _event(self, at: int, size: int, address: int) -> str:
        self._allocated += size
        self._reserved = max(self._reserved, -(-self._allocated // _SEGMENT) * _SEGMENT)
        return (
            f'  {{\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", {self._place},\n'
            f'    "ts": {time_us(at)},\n    "args": {{\n      "Total Reserved": {self._reserved}, '
            f'"Total Allocated": {self._allocated}, "Bytes": {size}, "Addr": {address}, '
            f'"Device Id": {self._device}, "Device Type": 1\n    }}\n  }}'
        )


class Stacks:
    """The Python frames of one process."""

    def __init__(self, pid: int) -> None:
        """No frame has been entered."""
        self._place = f'"pid": {pid}, "tid": {pid}'
        self._id = 0

    def events(self, timed: TimedPass) -> Iterator[str]:
        """The frames that are entered and left within a pass."""
        yield self._frame("generate.py(88): step", timed.begin, timed.end, None)
        outer = self._id
        if timed.work.scheduler_ns:
            yield self._frame("scheduler.py(210): schedule", timed.end, timed.between_end, None)
        if timed.work.input_ns:
            yield self._frame("queue.py(154): get", timed.between_end, timed.host_end, None)
        for module, start, end in _modules(timed.ops):
            yield self._frame(f"nn.Module: {module}", start, end, outer)
            yield self._frame("torch/nn/modules/module.py(1779): _call_impl", start, end, self._id)
            yield self._frame(f"model.py({100 + len(module)}): forward", start, end, self._id)

    def _frame(self, name: str, start: int, end: int, parent: int | None) -> str:
        self._id += 1
        return (
            f'  {{\n    "ph": "X", "cat": "python_function", "name": {quoted(name)}, {self._place},\n'
            f'    "ts": {time_us(start)}, "dur": {time_us(end - start)},\n    "args": {{\n'
            f'      "Python parent id": {"null" if parent is None else parent}, "Python id": {self._id}\n    }}\n  }}'
        )


def _modules(ops: list[TimedOp]) -> Iterator[tuple[str, int, int]]:
    """Each run of ops that one module calls: its name, start and end in ns."""
    module, start, end = None, 0, 0
    for op in ops:
        if op.op.module is None and op.start < end:  # called by an op of the module
            continue
        if op.op.module != module:
            if module is not None:
                yield module, start, end
            module, start = op.op.module, op.start
        end = op.start + op.duration
    if module is not None:
        yield module, start, end


def _first_bytes(op: TimedOp) -> int:
    """Bytes of the op's first tensor argument, in whole blocks."""
    for argument in op.op.arguments:
        if isinstance(argument, Tensor):
            size = _ITEM_BYTES.get(argument.dtype, 1)
            for dim in argument.dims:
                size *= dim
            return max(_BLOCK, -(-size // _BLOCK) * _BLOCK)
    return _BLOCK
