"""The devices of a run and the limits their figures are measured against.

A device is one accelerator of one rank, or the CPU of a CPU-only run. Peaks come from the user (which always wins),
else from the catalogue entry that the trace's own device block identifies: the entry of the device the kernels ran on,
not the first one listed. Kineto records no clock and no bandwidth, so without an entry the peaks are unknown, and the
figures that need them stay unknown.

What could be wrong: sheet peaks assume the sheet's clock, and a card may run above or below it; where nobody measured
what a card reaches, "achievable" is an assumed share of the sheet and `assumed_achievable` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from traceanalyzer.catalog import gpus
from traceanalyzer.trace.collector import number, section, word
from traceanalyzer.trace.tables import DeviceProperties, Metadata

DeviceKind = Literal["cuda", "rocm", "cpu"]


@dataclass(frozen=True)
class Limits:
    """What the user supplied: a GPU id and figures that override the sheet (TFLOP/s per dtype, GB/s)."""

    gpu: str | None = None
    peaks_tflops: Mapping[str, float] = field(default_factory=dict)
    bandwidth_gbs: float | None = None


@dataclass(frozen=True)
class DeviceInfo:
    """One device. Peaks are dense TFLOP/s, bandwidth GB/s, memory bytes; None and missing keys mean unknown."""

    rank: int | None
    device: int
    kind: DeviceKind
    name: str | None
    gpu: gpus.Gpu | None
    identified_by: str | None
    num_sms: int | None
    memory_bytes: int | None
    overrides: Limits

    @property
    def has_tensor_cores(self) -> bool | None:
        """Whether the device has tensor (matrix) cores; None where the device is not known."""
        if self.kind == "cpu":
            return False
        if self.gpu is None:
            return True if TENSOR_DTYPES & set(self.overrides.peaks_tflops) else None
        return self.gpu.has_tensor_cores

    @property
    def bandwidth_gbs(self) -> float | None:
        """Peak memory bandwidth: the user's figure, else the sheet's."""
        if self.overrides.bandwidth_gbs is not None:
            return self.overrides.bandwidth_gbs
        return self.gpu.bandwidth_gbs if self.gpu else None

    def peak_tflops(self, dtype: str | None, tensor_core: bool) -> float | None:
        """Dense peak for a compute dtype: the user's figure, else the sheet's for that kind of unit."""
        if dtype is None:
            return None
        given = self.overrides.peaks_tflops.get(self._computed_in(dtype, tensor_core))
        if given is not None and (tensor_core or dtype not in TENSOR_DTYPES or self.kind == "cpu"):
            return given
        return self.gpu.peak_tflops(dtype, tensor_core) if self.gpu else None

    def _computed_in(self, dtype: str, tensor_core: bool) -> str:
        """On tensor cores fp32 is computed in tf32, unless the card's matrix cores multiply fp32 itself."""
        own = self.gpu is not None and "fp32" in self.gpu.tensor_tflops
        return "tf32" if tensor_core and dtype == "fp32" and not own else dtype

    @property
    def peaks_tflops(self) -> dict[str, float]:
        """Peaks by dtype: tensor cores where the device has them for that dtype, else the vector units."""
        peaks: dict[str, float] = {}
        if self.gpu:
            peaks.update(self.gpu.vector_tflops)
            peaks.update(self.gpu.tensor_tflops)
        peaks.update(self.overrides.peaks_tflops)
        return dict(sorted(peaks.items()))

    @property
    def vector_peaks_tflops(self) -> dict[str, float]:
        """Peaks of the vector units, by dtype."""
        given = {d: peak for d, peak in self.overrides.peaks_tflops.items() if d not in TENSOR_DTYPES}
        return dict(sorted({**(self.gpu.vector_tflops if self.gpu else {}), **given}.items()))

    @property
    def achievable_tflops(self) -> dict[str, float]:
        """What matrix multiplication reaches in practice, by dtype: measured where known, else the assumed share.

        A peak that the user supplied replaces the card's, and with it what was measured on such a card.
        """
        given = {d: peak for d, peak in self.overrides.peaks_tflops.items() if d in TENSOR_DTYPES}
        tensor = {**(self.gpu.tensor_tflops if self.gpu else {}), **given}
        reach = {dtype: peak * gpus.ASSUMED_ACHIEVABLE_FLOPS for dtype, peak in tensor.items()}
        measured = self.gpu.achievable_tflops if self.gpu else {}
        return dict(sorted({**reach, **{d: v for d, v in measured.items() if d not in given}}.items()))

    @property
    def achievable_gbs(self) -> float | None:
        """What copies reach in practice: measured where known, else the assumed share of the peak."""
        if self.gpu and self.gpu.achievable_gbs is not None and self.overrides.bandwidth_gbs is None:
            return self.gpu.achievable_gbs
        return None if self.bandwidth_gbs is None else self.bandwidth_gbs * gpus.ASSUMED_ACHIEVABLE_BANDWIDTH

    @property
    def assumed_achievable(self) -> bool:
        """Whether the achievable bandwidth is the assumed share rather than a measurement."""
        return self.overrides.bandwidth_gbs is not None or self.gpu is None or self.gpu.achievable_gbs is None

    @property
    def matrix_ridge(self) -> float | None:
        """The ridge point of matrix products in 16 bits, else in fp32, which a run's arithmetic is compared with."""
        ridges = self.ridge_flop_per_byte
        return next((ridges[dtype] for dtype in ("bf16", "fp16", "fp32") if dtype in ridges), None)

    @property
    def ridge_flop_per_byte(self) -> dict[str, float]:
        """The arithmetic intensity at which the compute roof meets the memory roof, per dtype."""
        if not self.bandwidth_gbs:
            return {}
        return {dtype: peak * 1e3 / self.bandwidth_gbs for dtype, peak in self.peaks_tflops.items()}


TENSOR_DTYPES = frozenset({"fp16", "bf16", "tf32", "fp8", "int8", "fp4", "int4"})
"""Dtypes whose peak, when the user supplies one, is that of tensor cores."""


def _kind(properties: DeviceProperties | None, metadata: Metadata, launches_are_hip: bool) -> DeviceKind:
    producer = metadata.producer or {}
    amd = properties is not None and properties.warp_size == 64
    hip = launches_are_hip or any(key.startswith(("hip", "roc")) for key in producer)
    return "rocm" if amd or hip else "cuda"


def _as_collected(metadata: Metadata, device: int) -> DeviceProperties | None:
    """The GPU as the collector names it, for a trace without a device block; None where it does not."""
    gpu = section(metadata.collector, "gpu")
    name, memory = word(gpu, "name"), number(gpu, "memory_bytes")
    if name is None:
        return None
    size = int(memory) if memory is not None and memory > 0 else None
    return DeviceProperties(device, name, size, compute_major=None, compute_minor=None, num_sms=None, warp_size=None)


def describe(metadata: Metadata, device: int, launches_are_hip: bool, limits: Limits) -> DeviceInfo:
    """Identify the accelerator that a trace calls `device`.

    Raises:
        UnknownGPUError: the user's GPU id is not in the catalogue.
    """
    properties = next((p for p in metadata.devices if p.id == device), None)
    if properties is None and len(metadata.devices) == 1:
        properties = metadata.devices[0]
    if not metadata.devices:
        properties = _as_collected(metadata, device)
    gpu, identified_by = None, None
    if limits.gpu is not None:
        gpu, identified_by = gpus.find(limits.gpu), "--gpu"
    elif properties is not None:
        capability = None
        if properties.compute_major is not None:
            capability = f"{properties.compute_major}.{properties.compute_minor or 0}"
        found = gpus.identify(
            properties.name, capability, properties.num_sms, properties.memory_bytes, properties.warp_size
        )
        gpu, identified_by = found if found else (None, None)
    return DeviceInfo(
        rank=metadata.rank,
        device=device,
        kind=_kind(properties, metadata, launches_are_hip),
        name=(properties.name if properties and properties.name else None),
        gpu=gpu,
        identified_by=identified_by,
        num_sms=(properties.num_sms if properties else None) or (gpu.num_sms if gpu else None),
        memory_bytes=(properties.memory_bytes if properties else None) or (gpu.memory_bytes if gpu else None),
        overrides=limits,
    )


def describe_cpu(metadata: Metadata, limits: Limits) -> DeviceInfo:
    """The CPU as a device: no sheet peaks, only what the user supplies."""
    return DeviceInfo(
        rank=metadata.rank, device=0, kind="cpu", name="CPU", gpu=None, identified_by=None, num_sms=None,
        memory_bytes=None, overrides=Limits(None, limits.peaks_tflops, limits.bandwidth_gbs),
    )  # fmt: skip
