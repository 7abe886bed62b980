"""What one GPU says about itself through NVML and, from Hopper on, its GPM counters; read from outside the run.

`pynvml` is the module of the distribution nvidia-ml-py (13 or newer; older ones give fewer fields). NVML's definitions:
docs.nvidia.com/deploy/nvml-api. Every field stands alone: what a GPU, a driver, a permission or a GPU that fell off the
bus does not give is None, never 0.

What could be wrong: utilisation is the driver's own mean over 1/6 to 1 second, so a short window is mixed with what
came before it. In MIG mode NVML has no utilisation and its memory is that of the whole GPU. Processes are counted only
where our process ids are those of the machine: in a container NVML shows others' ids, or none.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
import warnings
from pathlib import Path
from typing import Any, Callable, Iterable, NamedTuple

PROC = Path("/proc")
THROTTLE_REASONS = {
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""nvmlClocksEventReason* by bit. Left out: 0x1, idle, and 0x2, clocks set by the user, which `sm_mhz` shows."""
GPM_METRICS = {"sm_active": 2, "sm_occupancy": 3, "tensor_active": 5, "dram_active": 10}
"""Field -> NVML_GPM_METRIC_SM_UTIL, _SM_OCCUPANCY, _ANY_TENSOR_UTIL, _DRAM_BW_UTIL."""
SLOW_S = 1.0
"""How often the power limit and the processes are read: they change rarely, and a list of processes costs most."""
_GPM_TRIES = 5
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""Linux' PROC_PID_INIT_INO: the namespace of the machine itself."""
_DEEPEST = 64


class Unavailable(Exception):
    """NVML cannot be used here; the message says why."""


class Sample(NamedTuple):
    """One reading: what held from `start_ns` to `end_ns`, epoch nanoseconds. Shares are 0 to 1, None is unknown."""

    start_ns: int
    end_ns: int
    util_gpu: float | None
    """Share of time in which any kernel ran; it says nothing of how much of the GPU that kernel used."""
    util_mem: float | None
    """Share of time in which memory was read or written."""
    memory_used_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    sm_mhz: int | None
    throttle: int | None
    """Bits of `THROTTLE_REASONS`."""
    other_processes: int | None
    """Processes with a compute context on this GPU that are not of the recorded command."""
    sm_active: float | None
    sm_occupancy: float | None
    tensor_active: float | None
    dram_active: float | None


def load() -> Any:
    """The module `pynvml`, with NVML initialised. Raises `Unavailable`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a package of that name that is being retired warns at import
            import pynvml
    except ImportError:
        raise Unavailable("the Python package nvidia-ml-py is not installed for the collector") from None
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError) as error:
        raise Unavailable(str(error)) from None
    return pynvml


def devices(nvml: Any) -> list[Device]:
    """The GPUs that NVML lists, in its order (that of the PCI bus); one that does not answer is left out."""
    found = []
    for index in range(_ask(nvml, "nvmlDeviceGetCount") or 0):
        handle = _ask(nvml, "nvmlDeviceGetHandleByIndex", index)
        if handle is not None:
            found.append(Device(nvml, index, handle))
    return found


def driver(nvml: Any) -> str | None:
    """The driver's version, as 580.65.06."""
    return _text(_ask(nvml, "nvmlSystemGetDriverVersion"))


def throttle_names(bits: int) -> list[str]:
    """The reasons in `bits` that hold the clock down; unknown bits by their value."""
    rest = bits & ~0x3
    known = [name for bit, name in THROTTLE_REASONS.items() if rest & bit]
    rest &= ~sum(THROTTLE_REASONS)
    return [*known, f"unknown_{rest:#x}"] if rest else known


class Device:
    """One GPU. `facts` never changes: index, name, memory_bytes, sm_mhz_max, device_hash, mig, gpm."""

    def __init__(self, nvml: Any, index: int, handle: Any) -> None:
        """Read what does not change."""
        self._nvml = nvml
        self._handle = handle
        self.uuid = _text(self._ask("nvmlDeviceGetUUID"))
        """As NVML writes it; to recognise the GPU by, not to be recorded."""
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        mig = self._ask("nvmlDeviceGetMigMode")
        self._gpm = _Gpm(nvml, handle) if not (mig and mig[0]) else None
        self.facts: dict[str, Any] = {
            "index": index,
            "name": _text(self._ask("nvmlDeviceGetName")),
            "memory_bytes": int(memory.total) if memory is not None else None,
            "sm_mhz_max": self._ask("nvmlDeviceGetMaxClockInfo", getattr(nvml, "NVML_CLOCK_SM", 1)),
            "device_hash": hashlib.sha256(self.uuid.encode()).hexdigest()[:12] if self.uuid else None,
            "mig": bool(mig[0]) if mig else None,
            "gpm": self._gpm is not None and self._gpm.supported,
        }
        self._last_ns = 0
        self._slow_at = -SLOW_S
        self._limit_w: float | None = None
        self._others: int | None = None

    def read(self, pids: Callable[[], Iterable[int]]) -> Sample:
        """One sample, from the last one's end to now; the first one has no length.

        Args:
            pids: the process ids known to belong to the recorded command, beside the collector's descendants.
        """
        utilization = self._ask("nvmlDeviceGetUtilizationRates")
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        power = self._ask("nvmlDeviceGetPowerUsage")
        throttle = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if throttle is None:  # drivers before 535 know it by its old name only
            throttle = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        clock = self._ask("nvmlDeviceGetClockInfo", getattr(self._nvml, "NVML_CLOCK_SM", 1))
        now = time.monotonic()
        if now - self._slow_at >= SLOW_S:
            self._slow_at = now
            limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
            self._limit_w = limit / 1e3 if limit is not None else None
            self._others = others(self._ask("nvmlDeviceGetComputeRunningProcesses"), pids)
        gpm = self._gpm.read() if self._gpm is not None else {}
        end_ns = time.time_ns()
        start_ns, self._last_ns = min(self._last_ns or end_ns, end_ns), end_ns
        return Sample(
            start_ns=start_ns, end_ns=end_ns,
            util_gpu=utilization.gpu / 100 if utilization is not None else None,
            util_mem=utilization.memory / 100 if utilization is not None else None,
            memory_used_bytes=int(memory.used) if memory is not None else None,
            power_w=power / 1e3 if power is not None else None, power_limit_w=self._limit_w,
            sm_mhz=clock, throttle=throttle, other_processes=self._others,
            sm_active=gpm.get("sm_active"), sm_occupancy=gpm.get("sm_occupancy"),
            tensor_active=gpm.get("tensor_active"), dram_active=gpm.get("dram_active"),
        )  # fmt: skip

    def close(self) -> None:
        """Give back what was allocated in the driver."""
        if self._gpm is not None:
            self._gpm.close()

    def _ask(self, name: str, *arguments: Any) -> Any:
        return _ask(self._nvml, name, self._handle, *arguments)


class _Gpm:
    """The GPM counters of one GPU: two snapshots, whose difference gives means over the time between them."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        support = _ask(nvml, "nvmlGpmQueryDeviceSupport", handle)
        self._samples: list[Any] = []
        self.supported = bool(support is not None and support.isSupportedDevice) and self._allocate()
        self._filled = False
        self._failed = 0

    def _allocate(self) -> bool:
        self._samples = [s for s in (_ask(self._nvml, "nvmlGpmSampleAlloc") for _ in range(2)) if s is not None]
        if len(self._samples) < 2:
            self.close()
            return False
        self._request = self._nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(GPM_METRICS)
        for at, metric in enumerate(GPM_METRICS.values()):
            self._request.metrics[at].metricId = metric
        return True

    def read(self) -> dict[str, float | None]:
        """Shares since the last call; empty where there was none. A counter that keeps failing is asked no more."""
        if not self.supported or self._failed >= _GPM_TRIES:
            return {}
        before, after = self._samples
        if _ask(self._nvml, "nvmlGpmSampleGet", self._handle, after) is None:
            self._failed += 1
            self._filled = False
            return {}
        filled, self._filled = self._filled, True
        self._samples = [after, before]
        if not filled:
            return {}
        self._request.sample1, self._request.sample2 = before, after
        if _ask(self._nvml, "nvmlGpmMetricsGet", self._request) is None:
            self._failed += 1
            return {}
        self._failed = 0
        return {name: _share(self._request.metrics[at]) for at, name in enumerate(GPM_METRICS)}

    def close(self) -> None:
        for sample in self._samples:
            _ask(self._nvml, "nvmlGpmSampleFree", sample)
        self._samples = []
        self.supported = False


def others(running: Any, pids: Callable[[], Iterable[int]], proc: Path = PROC) -> int | None:
    """How many of the processes on a GPU are not the recorded command's.

    Args:
        running: what NVML lists, None where it does not.
        pids: the process ids known to be the command's, beside descendants of this process.
        proc: where the kernel shows processes.

    Returns None inside a container: there NVML's ids are not ours, or are not shown at all.
    """
    if running is None:
        return None
    try:
        if os.readlink(str(proc / "self" / "ns" / "pid")) != _INITIAL_PID_NAMESPACE:
            return None
    except OSError:
        return None
    known = {os.getpid(), *pids()}
    return sum(1 for process in running if not _descends(int(process.pid), known, proc))


def _descends(pid: int, known: set[int], proc: Path) -> bool:
    for _ in range(_DEEPEST):
        if pid in known:
            return True
        try:
            # The name, in parentheses, may hold anything; the state and the parent follow the last one.
            pid = int((proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
        if pid <= 1:
            return pid in known
    return False


def _ask(nvml: Any, name: str, *arguments: Any) -> Any:
    """What NVML answers, None where it does not. An answer without a value (freeing) is True."""
    call = getattr(nvml, name, None)
    if call is None:
        return None
    try:
        answer = call(*arguments)
    except (nvml.NVMLError, OSError, ValueError):  # ValueError: a name that is no UTF-8
        return None
    return True if answer is None else answer


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _share(metric: Any) -> float | None:
    value = float(metric.value)
    return value / 100 if metric.nvmlReturn == 0 and math.isfinite(value) and value >= 0 else None
