"""Stands for the module `pynvml` on a machine with GPUs: its names, signatures, structures and errors, our values."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pynvml


class FakeNvml:
    """One or more GPUs. What a call answers is set in `gpus`; an exception there is raised; `calls` counts."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    NVML_GPM_METRICS_GET_VERSION = pynvml.NVML_GPM_METRICS_GET_VERSION
    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t

    def __init__(self, *gpus: dict[str, Any]) -> None:
        self.gpus = [{**HOPPER, **gpu} for gpu in gpus or ({},)]
        self.calls: dict[str, int] = {}
        self.asked_for: list[int] = []
        self.allocated = 0
        self._snapshots = itertools.count()

    def _answer(self, name: str, handle: int) -> Any:
        self.calls[name] = self.calls.get(name, 0) + 1
        value = self.gpus[handle][name]
        if isinstance(value, list) and value and isinstance(value[0], tuple):  # one after the other, the last one stays
            value = value.pop(0)[0] if len(value) > 1 else value[0][0]
        if isinstance(value, BaseException):
            raise value
        return value

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlDeviceGetName(self, handle: int) -> Any:
        return self._answer("name", handle)

    def nvmlDeviceGetUUID(self, handle: int) -> Any:
        return self._answer("uuid", handle)

    def nvmlDeviceGetMigMode(self, device: int) -> Any:
        return self._answer("mig", device)

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: Any = None) -> Any:
        return self._answer("memory", handle)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self._answer("utilization", handle)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> Any:
        return self._answer("power", handle)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> Any:
        return self._answer("limit", handle)

    def nvmlDeviceGetClockInfo(self, handle: int, type: int) -> Any:
        assert type == pynvml.NVML_CLOCK_SM
        return self._answer("clock", handle)

    def nvmlDeviceGetMaxClockInfo(self, handle: int, type: int) -> Any:
        assert type == pynvml.NVML_CLOCK_SM
        return self._answer("clock_max", handle)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> Any:
        return self._answer("throttle", handle)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> Any:
        return self._answer("throttle_old", handle)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        return [SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in self._answer("pids", handle)]

    def nvmlGpmQueryDeviceSupport(self, device: int) -> Any:
        return SimpleNamespace(isSupportedDevice=self._answer("gpm", device))

    def nvmlGpmSampleAlloc(self) -> Any:
        self.allocated += 1
        return pynvml.c_nvmlGpmSample_t(pynvml.struct_c_nvmlGpmSample_t())

    def nvmlGpmSampleGet(self, device: int, gpmSample: Any) -> Any:
        self._answer("gpm_sample", device)
        self.last_gpm_device = device
        return gpmSample

    def nvmlGpmMetricsGet(self, metricsGet: Any) -> Any:
        assert metricsGet.version == 1 and metricsGet.sample1 and metricsGet.sample2
        values = self._answer("gpm_values", self.last_gpm_device)
        self.asked_for = [metricsGet.metrics[at].metricId for at in range(metricsGet.numMetrics)]
        for at, metric in enumerate(self.asked_for):
            value = values.get(metric)
            metricsGet.metrics[at].nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if value is None else 0
            metricsGet.metrics[at].value = 0.0 if value is None else value
        return metricsGet

    def nvmlGpmSampleFree(self, gpmSample: Any) -> None:
        self.allocated -= 1


HOPPER: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-5d1c0a2e-0000-1111-2222-333344445555",
    "mig": [0, 0],
    "memory": SimpleNamespace(total=80 << 30, used=60 << 30, free=20 << 30),
    "utilization": SimpleNamespace(gpu=100, memory=61),
    "power": 412_500,
    "limit": 700_000,
    "clock": 1755,
    "clock_max": 1980,
    "throttle": 0,
    "throttle_old": 0,
    "pids": (),
    "gpm": 1,
    "gpm_sample": None,
    "gpm_values": {2: 97.5, 3: 41.0, 5: 6.0, 10: 61.5},
}
