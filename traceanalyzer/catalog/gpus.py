"""What each GPU can do at best: peak FLOP/s per data type, memory bandwidth, SM count; and which GPU a trace ran on.

A trace holds neither clocks nor bandwidth, so the figures come from the table beside this module, `gpus.json`. What
could be wrong: sheets print sparse or fp16-accumulate rates (the table holds dense rates with fp32 accumulate), boost
clocks are not sustained clocks (a power-limited card stays below its peak, a GeForce card can exceed it), and figures
marked `computed` or `recalled` were not read from a sheet. A MIG slice or a partitioned card is never given the whole
card's peaks. All FLOP/s count one FMA as two.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from traceanalyzer.errors import UnknownGPUError

#: Where no ceiling was measured for a card, large GEMMs are assumed to reach this share of the dense tensor peak.
#: Source: measured maxima of 0.51 to 0.87 over A100, H100, H200, B200, MI300X, MI355X (ml-engineering MAMF, AMD MAF).
ASSUMED_ACHIEVABLE_FLOPS = 0.80
#: The same for memory traffic. Source: device copies of 0.83 (A100 80GB at 330 W) to 0.90 (H200) of sheet bandwidth.
ASSUMED_ACHIEVABLE_BANDWIDTH = 0.88

BY_NAME = "name"
BY_PROPERTIES = "compute capability, SM count and memory"

#: A driver reserves a few per cent of the memory; boards that keep ECC bits inline lose another sixteenth.
_MEMORY_TOLERANCE = 0.04
_INLINE_ECC_SHARE = 15 / 16
_GIB = 1 << 30
_AMD_WARP = 64

_MIG = re.compile(r"\s+MIG\s+(?P<profile>\S+)\s*$", re.IGNORECASE)
_MIG_MEMORY = re.compile(r"\.(\d{1,4})gb", re.IGNORECASE)
_LONGEST_NAME = 200
_PREFIX = re.compile(r"(?:(?:nvidia|tesla|grid)\s+)+")
_SUFFIX = re.compile(r"(?:\s+vf|-ls)+\Z")
_VGPU_PROFILE = re.compile(r"-\d+[abcq]$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as a trace sees it (one CUDA or HIP device: an MI250X is two).

    `names` are the names its driver reports. `memory_bytes` is the nominal size, None where boards of that name come
    in several `memory_sizes`. `bandwidth_gbs` is 1e9 bytes/s of the sheet. The TFLOP/s (for integers TOP/s) are dense
    and keyed by data type (fp64 fp32 tf32 bf16 fp16 fp8 int8 fp4 int4): `tensor_tflops` on tensor or matrix cores with
    fp32 accumulate, `vector_tflops` on the ordinary cores. `has_tensor_cores` says whether it has tensor (matrix) cores
    at all: their peaks can be unknown, and are then absent. `achievable_tflops` and `achievable_gbs` are ceilings that
    were measured on real cards (`achievable_source` says by whom), empty and None elsewhere. `confidence` is high,
    medium or low (how well published sources agree), `computed` (num_sms x FLOPs/clock/SM x clock) or `recalled`.
    """

    id: str
    names: tuple[str, ...]
    vendor: str
    arch: str
    compute_capability: str
    num_sms: int
    memory_bytes: int | None
    memory_sizes: tuple[int, ...]
    bandwidth_gbs: float
    tensor_tflops: Mapping[str, float]
    vector_tflops: Mapping[str, float]
    has_tensor_cores: bool
    achievable_tflops: Mapping[str, float]
    achievable_gbs: float | None
    achievable_source: str | None
    confidence: str
    sources: tuple[str, ...]
    note: str | None

    def peak_tflops(self, dtype: str, tensor_core: bool) -> float | None:
        """The dense peak, in TFLOP/s, of a kernel that computes in `dtype`; None where the GPU has no such unit
        or its peak is not known.

        On tensor cores fp32 means tf32, unless the matrix cores multiply fp32 itself (AMD CDNA). Off tensor cores a
        float type narrower than fp32 is never slower than fp32, since libraries widen it; tf32 does not exist there.
        """
        if tensor_core:
            peak = self.tensor_tflops.get(dtype)
            return self.tensor_tflops.get("tf32") if peak is None and dtype == "fp32" else peak
        if dtype in _WIDENED_TO_FP32:
            return max(self.vector_tflops.get(dtype, 0.0), self.vector_tflops["fp32"])
        return self.vector_tflops.get(dtype)


_WIDENED_TO_FP32 = frozenset({"bf16", "fp16", "fp8", "fp4"})


@cache
def gpus() -> tuple[Gpu, ...]:
    """Every GPU of the catalogue, oldest architecture first within a vendor."""
    text = resources.files(__package__).joinpath("gpus.json").read_text(encoding="utf-8")
    data = json.loads(text)
    rates = data["flops_per_clock"]
    return tuple(_gpu(entry, rates[entry["rate"]]) for entry in data["gpus"])


def find(gpu_id: str) -> Gpu:
    """The GPU with this id (case does not matter).

    Raises:
        UnknownGPUError: the catalogue does not hold it; the hint names near matches and the command that lists all.
    """
    wanted = gpu_id.strip().lower()
    known = {gpu.id: gpu for gpu in gpus()}
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    raise UnknownGPUError(f"unknown GPU id {gpu_id[:80]!r}", f"{hint}`traceanalyzer gpus` lists them all")


def identify(
    name: str | None,
    compute_capability: str | None,
    num_sms: int | None,
    memory_bytes: int | None,
    warp_size: int | None,
) -> tuple[Gpu, str] | None:
    """The GPU behind one entry of a trace's device properties, and by what it was recognised; None if it is unknown.

    First by name (as reported, then without decoration such as "NVIDIA", "VF" or a vGPU profile), where boards share a
    name by SM count and memory; else by compute capability, SM count and memory within 4 %. NVIDIA and AMD share
    compute capabilities 9.0 to 9.5: a warp of 64 threads means AMD. Where several GPUs fit, the first is returned and
    the text says which others do. A MIG slice and a partitioned card get peaks scaled by their SM count and bandwidth
    by their share of the memory; a MIG slice whose SM count is unknown is no known GPU. A card is never given more than
    its own peaks, however many SMs are reported.
    """
    text = " ".join((name or "")[:_LONGEST_NAME].split())
    num_sms = num_sms if num_sms and num_sms > 0 else None
    memory_bytes = memory_bytes if memory_bytes and memory_bytes > 0 else None
    mig = _MIG.search(text)
    full_name = text[: mig.start()] if mig else text
    named = _by_name(full_name)
    if named:
        gpu = min(named, key=lambda one: _distance(one, num_sms, memory_bytes))
        if mig or (num_sms is not None and num_sms < gpu.num_sms):
            return _slice(gpu, num_sms, memory_bytes, mig["profile"] if mig else None)
        return gpu, BY_NAME
    if mig:
        return None
    return _by_properties(compute_capability, num_sms, memory_bytes, warp_size)


def _gpu(entry: Mapping[str, Any], rate: Mapping[str, Mapping[str, float]]) -> Gpu:
    """One entry of the data file; peaks it does not state are num_sms x FLOPs/clock/SM x clock."""

    def peaks(kind: str, clock_mhz: float | None) -> Mapping[str, float]:
        stated: Mapping[str, float] | None = entry.get(f"{kind}_tflops")
        if stated is not None or clock_mhz is None:
            return dict(stated or {})
        return {
            dtype: float(f"{entry['num_sms'] * flops * clock_mhz * 1e-6:.4g}") for dtype, flops in rate[kind].items()
        }

    sizes = tuple(int(size * _GIB) for size in entry["memory_gb"])
    return Gpu(
        id=entry["id"],
        names=tuple(entry["names"]),
        vendor=entry["vendor"],
        arch=entry["arch"],
        compute_capability=entry["compute_capability"],
        num_sms=entry["num_sms"],
        memory_bytes=sizes[0] if len(sizes) == 1 else None,
        memory_sizes=sizes,
        bandwidth_gbs=float(entry["bandwidth_gbs"]),
        tensor_tflops=peaks("tensor", entry["tensor_mhz"]),
        vector_tflops=peaks("vector", entry["boost_mhz"]),
        has_tensor_cores=bool(rate["tensor"]),
        achievable_tflops=dict(entry.get("achievable_tflops", {})),
        achievable_gbs=entry.get("achievable_gbs"),
        achievable_source=entry.get("achievable_source"),
        confidence=entry["confidence"],
        sources=tuple(entry["sources"]),
        note=entry.get("note"),
    )


def _plain(name: str) -> str:
    """A device name without what drivers, virtual functions and vGPU profiles add to it."""
    text = " ".join(name.lower().replace("(tm)", " ").split())
    if prefix := _PREFIX.match(text):
        text = text[prefix.end() :]
    return _VGPU_PROFILE.sub("", _SUFFIX.sub("", text))


def _by_name(name: str) -> list[Gpu]:
    """Every GPU of this name: exactly as reported, else by the undecorated name."""
    if not name:
        return []
    exact = [gpu for gpu in gpus() if name in gpu.names]
    if exact:
        return exact
    plain = _plain(name)
    return [gpu for gpu in gpus() if any(plain == _plain(known) for known in gpu.names)]


def _memory_error(gpu: Gpu, memory_bytes: int) -> float:
    """How far the reported memory is from the nearest size that boards of this GPU report, as a share."""
    likely = [size * share for size in gpu.memory_sizes for share in (1.0, _INLINE_ECC_SHARE)]
    return min(abs(memory_bytes / size - 1) for size in likely)


def _distance(gpu: Gpu, num_sms: int | None, memory_bytes: int | None) -> tuple[int, float]:
    """How badly the reported properties fit this GPU; unknown properties fit anything."""
    sms = 0 if num_sms is None else abs(num_sms - gpu.num_sms)
    return sms, 0.0 if memory_bytes is None else _memory_error(gpu, memory_bytes)


def _by_properties(
    compute_capability: str | None, num_sms: int | None, memory_bytes: int | None, warp_size: int | None
) -> tuple[Gpu, str] | None:
    """The GPU with these properties, nearest memory first; the text names the others that fit as well."""
    if compute_capability is None or num_sms is None or memory_bytes is None:
        return None
    fitting = [
        gpu
        for gpu in gpus()
        if gpu.compute_capability == compute_capability
        and gpu.num_sms == num_sms
        and (warp_size is None or (warp_size == _AMD_WARP) == (gpu.vendor == "amd"))
        and _memory_error(gpu, memory_bytes) <= _MEMORY_TOLERANCE
    ]
    if not fitting:
        return None
    fitting.sort(key=lambda gpu: _memory_error(gpu, memory_bytes))
    others = ", ".join(gpu.id for gpu in fitting[1:])
    return fitting[0], f"{BY_PROPERTIES} (also fits {others})" if others else BY_PROPERTIES


def _slice(gpu: Gpu, num_sms: int | None, memory_bytes: int | None, profile: str | None) -> tuple[Gpu, str] | None:
    """Part of a card: FLOP/s in proportion to its SMs, bandwidth to its eighths of the memory."""
    if num_sms is None or num_sms > gpu.num_sms:
        return None
    share = num_sms / gpu.num_sms
    memory_share = _memory_share(gpu, memory_bytes, profile)
    part = f"{num_sms} of {gpu.num_sms} SMs"
    sliced = replace(
        gpu,
        id=f"{gpu.id}:{profile.lower()}" if profile else f"{gpu.id}:{num_sms}sm",
        num_sms=num_sms,
        memory_bytes=memory_bytes,
        bandwidth_gbs=gpu.bandwidth_gbs * memory_share,
        tensor_tflops=_scaled(gpu.tensor_tflops, share),
        vector_tflops=_scaled(gpu.vector_tflops, share),
        achievable_tflops=_scaled(gpu.achievable_tflops, share),
        achievable_gbs=None if gpu.achievable_gbs is None else gpu.achievable_gbs * memory_share,
        confidence="computed",
        note=f"part of a card: peaks scaled to {part}, bandwidth to {memory_share:.3g} of the memory",
    )
    return sliced, f"{BY_NAME}, scaled to {part}"


def _memory_share(gpu: Gpu, memory_bytes: int | None, profile: str | None) -> float:
    """The share of the card's memory that a slice holds, in eighths (memory is partitioned in eighths)."""
    stated = _MIG_MEMORY.search(profile or "")
    held = int(stated[1]) * _GIB if stated else memory_bytes
    if held is None:
        return 1.0
    full: Sequence[int] = gpu.memory_sizes
    return min(1.0, max(1, round(held / max(full) * 8)) / 8)


def _scaled(peaks: Mapping[str, float], share: float) -> Mapping[str, float]:
    """Every peak times a share."""
    return {dtype: peak * share for dtype, peak in peaks.items()}
