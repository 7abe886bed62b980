"""Samples the GPUs' own counters beside the run, in a thread of the supervisor: means per window, and a file of all.

What could be wrong: a sample stands for the time since the one before, and power, clock and memory are what held at its
end. A window of a few periods has a few samples. The file keeps every sample at first and then fewer: after each
`ROWS_PER_STRIDE` rows it takes half as many ticks as before, so that a month stays small; the means per window are
always taken from every sample. A driver that hangs holds the thread, and only it: the counters are then unknown.
"""

from __future__ import annotations

import contextlib
import gzip
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Callable, Iterable, Sequence

from . import nvml as gpus
from .nvml import Device, Sample, Unavailable
from .say import say

KEPT_S = 180.0
"""How long single samples are remembered, for windows that just ended."""
ROWS_PER_STRIDE = 200_000
_JOIN_S = 2.0
_REST = 4.0
"""Least time between two samples, as a multiple of what one takes: a slow driver is asked less often."""
_MEANS = (
    "util_gpu", "util_mem", "power_w", "power_limit_w", "sm_mhz", "memory_used_bytes",
    "sm_active", "sm_occupancy", "tensor_active", "dram_active",
)  # fmt: skip
_COLUMNS = tuple(name for name in Sample._fields if name not in ("start_ns", "end_ns"))
HEADER = ("time_ns", "gpu", *_COLUMNS)
"""Of the file: epoch nanoseconds, NVML's index, then the fields of `Sample`; what is unknown is empty."""


class Counters:
    """The sampler. Nothing it does raises: without NVML, all is unknown and that is said once.

    Args:
        period_s: from one sample to the next.
        path: the file, .csv.gz; it appears, complete, when `stop` is called.
        nvml: stands for the module `pynvml`, already initialised.
        pids: the process ids known to be the command's, beside descendants of this process.
    """

    def __init__(
        self, period_s: float, path: Path, nvml: Any = None, pids: Callable[[], Iterable[int]] = tuple
    ) -> None:
        """Remember what to do; nothing is opened yet."""
        self._period_s = period_s
        self._path = path
        self._nvml = nvml
        self._pids = pids
        self._devices: list[Device] = []
        self._driver: str | None = None
        self._kept: dict[int, deque[Sample]] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._busy_s = 0.0
        self._ticks = 0
        self._complete = False

    def start(self) -> None:
        """Begin. NVML is loaded in the thread: where the driver is not kept loaded that takes seconds."""
        self._thread = threading.Thread(target=self._run, name="traceanalyzer-counters", daemon=True)
        self._thread.start()

    def stop(self) -> str | None:
        """End, and put the file in its place. Returns its name, None where there is no file."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        return self._path.name if self._complete else None

    def between(self, t0_ns: int, t1_ns: int, gpu: dict[str, Any] | None = None) -> dict[str, Any]:
        """The block's section `gpu`: means over a window, per GPU and then over the GPUs.

        Args:
            t0_ns, t1_ns: the window, epoch nanoseconds.
            gpu: a process' own fact of that name; its GPU is found by `uuid`. Without one, all GPUs are taken together.

        Returns an empty dict without NVML; a field is None where no sample of the window has it. `throttle_share`
        is the share of the window in which the clock was held down, `throttle_reasons` and `throttle_shares` say why.
        """
        with self._lock:
            chosen = _chosen(self._devices, gpu)
            kept = [list(self._kept[device.facts["index"]]) for device in chosen]
            sampling_ms = self._busy_s / self._ticks * 1e3 if self._ticks else None
            driver = self._driver
        if not chosen:
            return {}
        each = [_over(samples, t0_ns, t1_ns) for samples in kept]
        facts = [device.facts for device in chosen]
        merged: dict[str, Any] = {name: _mean([one[name] for one in each]) for name in _MEANS}
        merged.update(_throttling([one["throttle"] for one in each]))
        others = [one["other_processes"] for one in each if one["other_processes"] is not None]
        merged.update(
            name=" + ".join(sorted({fact["name"] for fact in facts if fact["name"]})) or None,
            gpus_sampled=len(chosen), driver=driver,
            memory_bytes=_mean([fact["memory_bytes"] for fact in facts]),
            sm_mhz_max=_mean([fact["sm_mhz_max"] for fact in facts]),
            device_hash=facts[0]["device_hash"] if len(facts) == 1 else None,
            other_processes=max(others) if others else None,
            samples=sum(one["samples"] for one in each),
            seconds=_mean([one["seconds"] for one in each]),
            sampling_ms=sampling_ms,
        )  # fmt: skip
        return merged

    def _run(self) -> None:
        try:
            own = self._nvml is None
            nvml = gpus.load() if own else self._nvml
        except Unavailable as error:
            say(f"no GPU counters: {error}")
            return
        devices = gpus.devices(nvml)
        if not devices:
            say("no GPU counters: the driver lists no GPU")
        else:
            with self._lock:
                self._devices, self._driver = devices, gpus.driver(nvml)
                self._kept = {
                    device.facts["index"]: deque(maxlen=int(KEPT_S / self._period_s) + 1) for device in devices
                }
            self._sample(devices)
            for device in devices:
                device.close()
        if own:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _sample(self, devices: Sequence[Device]) -> None:
        writer = _Writer(self._path)
        due = time.monotonic()
        while not self._end.is_set():
            began = time.monotonic()
            rows = [(device.facts["index"], device.read(self._pids)) for device in devices]
            with self._lock:
                for index, sample in rows:
                    self._kept[index].append(sample)
                self._busy_s += time.monotonic() - began
                self._ticks += 1
            writer.add(rows)
            now = time.monotonic()
            due = max(due + self._period_s, now + _REST * (now - began))  # what was missed is not made up for
            self._end.wait(due - now)
        self._complete = writer.close()


class _Writer:
    """The file: written beside its place, moved there when complete. A disk that is full ends it, not the sampling."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".tmp")
        self._rows = 0
        self._tick = 0
        self._stream: Any = None
        try:
            self._stream = gzip.open(self._part, "wt", 1, encoding="ascii", newline="\n")  # noqa: SIM115 (add, close)
            self._stream.write(",".join(HEADER) + "\n")
        except OSError as error:
            self._give_up(error)

    def add(self, rows: Sequence[tuple[int, Sample]]) -> None:
        """One line per GPU, or none where this tick is not kept any more."""
        self._tick += 1
        if self._stream is None or self._tick % (1 << (self._rows // ROWS_PER_STRIDE)):
            return
        self._rows += len(rows)
        try:
            self._stream.write("".join(f"{sample.end_ns},{index},{_cells(sample)}\n" for index, sample in rows))
        except OSError as error:
            self._give_up(error)

    def close(self) -> bool:
        """Whether the file is now complete and in its place."""
        if self._stream is None:
            return False
        try:
            self._stream.close()
            self._part.replace(self._path)
        except OSError as error:
            self._give_up(error)
            return False
        return True

    def _give_up(self, error: OSError) -> None:
        say(f"the GPU counters are not written: {error.strerror or error}")
        stream, self._stream = self._stream, None
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()
        with contextlib.suppress(OSError):
            self._part.unlink()


def _cells(sample: Sample) -> str:
    return ",".join(_cell(name, getattr(sample, name)) for name in _COLUMNS)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "throttle":
        return "|".join(gpus.throttle_names(value)) or "none"
    return str(value) if isinstance(value, int) else format(value, ".6g")


def _chosen(devices: Sequence[Device], gpu: dict[str, Any] | None) -> list[Device]:
    wanted = _bare(gpu.get("uuid")) if gpu else None
    same = [device for device in devices if wanted and _bare(device.uuid) == wanted]
    return same or list(devices)


def _bare(uuid: Any) -> str | None:
    """A GPU's UUID without the prefix that NVML writes and torch does not."""
    if not uuid:
        return None
    text = str(uuid).lower()
    return text[4:] if text.startswith("gpu-") else text


def _over(samples: Sequence[Sample], t0_ns: int, t1_ns: int) -> dict[str, Any]:
    """Means over a window, each sample weighted by the time that it shares with it."""
    within = [(min(t1_ns, s.end_ns) - max(t0_ns, s.start_ns), s) for s in samples]
    within = [(weight, sample) for weight, sample in within if weight > 0]
    found: dict[str, Any] = {}
    for name in _MEANS:
        known = [(weight, getattr(sample, name)) for weight, sample in within if getattr(sample, name) is not None]
        found[name] = sum(w * value for w, value in known) / sum(w for w, _ in known) if known else None
    others = [sample.other_processes for _, sample in within if sample.other_processes is not None]
    found["other_processes"] = max(others) if others else None
    found["throttle"] = [(weight, sample.throttle) for weight, sample in within if sample.throttle is not None]
    found["samples"] = len(within)
    found["seconds"] = sum(weight for weight, _ in within) / 1e9
    return found


def _throttling(each: Sequence[Sequence[tuple[int, int]]]) -> dict[str, Any]:
    flat = [one for device in each for one in device]
    if not flat:
        return {"throttle_reasons": None, "throttle_shares": None, "throttle_share": None}
    shares: dict[str, float] = {}
    total = sum(weight for weight, _ in flat)
    held = sum(weight for weight, bits in flat if gpus.throttle_names(bits))
    for weight, bits in flat:
        for name in gpus.throttle_names(bits):
            shares[name] = shares.get(name, 0.0) + weight / total
    ranked = sorted(shares, key=lambda name: (-shares[name], name))
    return {
        "throttle_reasons": ranked,
        "throttle_shares": [round(shares[name], 4) for name in ranked],
        "throttle_share": held / total,
    }


def _mean(values: Sequence[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
