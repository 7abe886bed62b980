"""The simulated card: what a kernel takes, given its FLOPs and bytes.

A kernel takes the longer of its arithmetic and its traffic, each at a share of the sheet's peak, plus a fixed time.
What could be wrong: real kernels have neither one share nor a sharp corner between the two; the shares are the
scenario's.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceanalyzer.catalog.gpus import Gpu
from traceanalyzer.errors import InputError
from traceanalyzer.simulate.program import Copy, Kernel
from traceanalyzer.simulate.scenario import Costs

#: Bytes per number.
SIZES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}
#: PyTorch's words for data types, as a profiler records them.
WORDS = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp32": "float", "fp8": "c10::Float8_e4m3fn"}

_MATRIX = frozenset({"gemm", "gemv", "moe"})
#: A device-to-host copy of a few ids: what its start costs, and PCIe 4.0 x16 as measured in practice.
_COPY_FIXED_NS = 1_000
_PCIE_GBS = 25.0

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Work:
    """What one kernel does: FLOPs and bytes of its own inputs and outputs, each once; and the unit that does it."""

    flops: float | None
    bytes: float
    dtype: str
    tensor_core: bool = False
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0


@dataclass(frozen=True)
class Launching:
    """How a kernel is launched."""

    grid: Grid = (1, 1, 1)
    block: Grid = (128, 1, 1)
    registers: int = 32
    shared_memory: int = 0


@dataclass(frozen=True)
class Card:
    """A GPU of the catalogue with the scenario's shares and fixed times."""

    gpu: Gpu
    costs: Costs

    def kernel(self, name: str, role: str, work: Work, launching: Launching, fill: float = 1.0) -> Kernel:
        """A kernel with its duration; `fill` is the share of the bandwidth that its few blocks can draw.

        Raises:
            InputError: the card has no peak for this data type on this unit.
        """
        flop_ns = self._flop_ns(role, work)
        byte_ns = work.bytes / (self._bandwidth_share(role) * fill * self.gpu.bandwidth_gbs)
        return Kernel(
            name=name,
            role=role,
            duration_ns=round(max(flop_ns, byte_ns)) + self.costs.kernel_fixed_ns,
            flops=work.flops,
            bytes=work.bytes,
            dtype=work.dtype,
            tensor_core=work.tensor_core,
            weight_bytes=work.weight_bytes,
            kv_bytes=work.kv_bytes,
            grid=launching.grid,
            block=launching.block,
            registers=launching.registers,
            shared_memory=launching.shared_memory,
        )

    def collective(self, name: str, link_bytes: float, dtype: str) -> Kernel:
        """A collective that moves this many bytes over each rank's link."""
        return Kernel(
            name=name,
            role="comm",
            duration_ns=round(link_bytes / self.costs.link_gbs) + self.costs.all_reduce_fixed_ns,
            flops=None,
            bytes=None,
            dtype=dtype,
            tensor_core=False,
            grid=(4, 1, 1),
            block=(544, 1, 1),
            registers=96,
            shared_memory=82_240,
            communication=True,
        )

    def copy(self, direction: str, size: int, *, blocking: bool) -> Copy:
        """A copy between host and card over PCIe."""
        return Copy(direction, size, _COPY_FIXED_NS + round(size / _PCIE_GBS), blocking=blocking)

    def peak_tflops(self, dtype: str, *, tensor_core: bool) -> float:
        """The dense peak.

        Raises:
            InputError: the card has none.
        """
        peak = self.gpu.peak_tflops(dtype, tensor_core)
        if not peak:
            unit = "on tensor cores" if tensor_core else "off tensor cores"
            raise InputError(f"{self.gpu.id} has no known {dtype} peak {unit}", "choose another data type or GPU")
        return peak

    def _flop_ns(self, role: str, work: Work) -> float:
        """Nanoseconds of arithmetic; that of vector kernels is never what binds them."""
        share = self.costs.matrix_compute if role in _MATRIX else self.costs.attention_compute
        if not work.flops or (role not in _MATRIX and role != "attention"):
            return 0.0
        return work.flops / (share * self.peak_tflops(work.dtype, tensor_core=work.tensor_core) * 1e3)

    def _bandwidth_share(self, role: str) -> float:
        if role in _MATRIX:
            return self.costs.matrix_bandwidth
        return self.costs.attention_bandwidth if role == "attention" else self.costs.vector_bandwidth
