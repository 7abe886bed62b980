"""GPU counters from a stand-in for NVML that the real module's names, signatures and structures are checked against."""

from __future__ import annotations

import contextlib
import csv
import gzip
import inspect
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from traceanalyzer.collect import counters, nvml
from traceanalyzer.collect.counters import Counters
from traceanalyzer.collect.nvml import Device, Sample

from .fake_nvml import FakeNvml
from .running import TIMEOUT_S, until

NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
LOST = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
NO_FUNCTION = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def read(fake: FakeNvml, times: int = 2) -> Sample:
    device = Device(fake, 0, 0)
    for _ in range(times):
        sample = device.read(tuple)
    return sample


def row(start_ns: int, end_ns: int, **values: Any) -> Sample:
    return Sample(start_ns, end_ns, **{**dict.fromkeys(Sample._fields[2:]), **values})


@pytest.fixture(autouse=True)
def _stopping_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine may need more than the two seconds for which a user is kept waiting."""
    monkeypatch.setattr(counters, "_JOIN_S", TIMEOUT_S)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc of a machine: we are the running process, 2001 its child, 2002 that one's child, 3000 somebody else's."""
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "pid").symlink_to("pid:[4026531836]")
    for pid, parent in ((2001, os.getpid()), (2002, 2001), (3000, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a ) 1 b) S {parent} 0 0")
    return tmp_path


# What the real module must have


def test_every_name_that_is_used_exists_in_the_real_module() -> None:
    source = Path(nvml.__file__).read_text(encoding="utf-8") + Path(counters.__file__).read_text(encoding="utf-8")
    used = {name for name in FakeNvml.__dict__ if name.startswith("nvml")} - {"nvmlReturn"}
    assert {name for name in used if name not in source} == set()
    for name in [*used, "nvmlInit", "nvmlShutdown"]:
        assert callable(getattr(pynvml, name)), name
        if name in used:
            real, fake = (
                list(inspect.signature(f).parameters) for f in (getattr(pynvml, name), getattr(FakeNvml(), name))
            )
            assert real == fake, name


def test_the_counters_have_the_numbers_that_the_real_module_gives_them() -> None:
    assert nvml.GPM_METRICS == {
        "sm_active": pynvml.NVML_GPM_METRIC_SM_UTIL,
        "sm_occupancy": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
        "tensor_active": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
        "dram_active": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    }
    assert len(nvml.GPM_METRICS) < pynvml.NVML_GPM_METRIC_MAX
    assert dict(pynvml.c_nvmlGpmMetricsGet_t._fields_).keys() == {
        "version", "numMetrics", "sample1", "sample2", "metrics",
    }  # fmt: skip
    assert {"metricId", "nvmlReturn", "value"} <= dict(pynvml.c_nvmlGpmMetric_t._fields_).keys()
    assert dict(pynvml.c_nvmlGpmSupport_t._fields_)["isSupportedDevice"]


@pytest.mark.parametrize(
    ("name", "prefix", "ours"),
    [
        ("SwPowerCap", "Event", "sw_power_cap"),
        ("HwSlowdown", "Event", "hw_slowdown"),
        ("SyncBoost", "Event", "sync_boost"),
        ("SwThermalSlowdown", "Event", "sw_thermal_slowdown"),
        ("HwThermalSlowdown", "Event", "hw_thermal_slowdown"),
        ("HwPowerBrakeSlowdown", "Event", "hw_power_brake_slowdown"),
        ("DisplayClockSetting", "Event", "display_clock_setting"),
        ("BoardLimit", "Throttle", "board_limit"),
        ("Reliability", "Throttle", "reliability"),
    ],
)
def test_reasons_are_decoded_as_the_real_module_names_them(name: str, prefix: str, ours: str) -> None:
    assert nvml.throttle_names(getattr(pynvml, f"nvmlClocks{prefix}Reason{name}")) == [ours]
    assert nvml.throttle_names(pynvml.nvmlClocksEventReasonGpuIdle) == []
    assert nvml.throttle_names(pynvml.nvmlClocksEventReasonApplicationsClocksSetting) == []


def test_a_reason_of_a_newer_driver_is_not_lost() -> None:
    assert nvml.throttle_names(0x4 | 0x1000) == ["sw_power_cap", "unknown_0x1000"]


# One GPU


def test_a_hopper_gpu_says_everything(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml.others, "__defaults__", (proc,))
    fake = FakeNvml({"throttle": 0x4, "pids": (2002, 3000)})
    sample = read(fake)
    assert sample.start_ns <= sample.end_ns <= time.time_ns()
    assert sample[2:] == (1.0, 0.61, 60 << 30, 412.5, 700.0, 1755, 0x4, 1, 0.975, 0.41, 0.06, 0.615)
    assert sorted(fake.asked_for) == [2, 3, 5, 10]
    assert fake.calls["pids"] == 1, "processes are not listed at every sample"


def test_the_first_sample_has_no_length_and_no_means() -> None:
    sample = read(FakeNvml(), times=1)
    assert sample.start_ns == sample.end_ns
    assert sample.tensor_active is None and sample.util_gpu == 1.0


def test_an_older_gpu_has_no_gpm() -> None:
    sample = read(FakeNvml({"gpm": 0}))
    assert (sample.tensor_active, sample.dram_active, sample.sm_active) == (None, None, None)
    assert sample.util_gpu == 1.0


def test_an_older_module_has_no_gpm_and_the_old_name_of_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in FakeNvml.__dict__ if name.startswith("nvmlGpm")]:
        monkeypatch.delattr(FakeNvml, name)
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetCurrentClocksEventReasons")
    sample = read(FakeNvml({"throttle_old": 0x20}))
    assert (sample.tensor_active, sample.throttle, sample.power_w) == (None, 0x20, 412.5)


def test_an_older_driver_has_the_old_name_of_the_reasons() -> None:
    assert read(FakeNvml({"throttle": NO_FUNCTION, "throttle_old": 0x40})).throttle == 0x40


def test_in_mig_mode_what_is_unknown_stays_unknown() -> None:
    fake = FakeNvml({"mig": [1, 1], "utilization": NOT_SUPPORTED, "clock": NOT_SUPPORTED})
    sample = read(fake)
    assert (sample.util_gpu, sample.util_mem, sample.sm_mhz, sample.tensor_active) == (None, None, None, None)
    assert sample.memory_used_bytes == 60 << 30
    assert fake.allocated == 0


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_NOT_SUPPORTED])
def test_each_field_is_missing_alone(code: int) -> None:
    error = pynvml.NVMLError(code)
    touched = {
        "utilization": {"util_gpu", "util_mem"}, "memory": {"memory_used_bytes"}, "power": {"power_w"},
        "limit": {"power_limit_w"}, "clock": {"sm_mhz"}, "pids": {"other_processes"},
        "gpm_sample": {"tensor_active", "dram_active", "sm_active", "sm_occupancy"},
        "gpm_values": {"tensor_active", "dram_active", "sm_active", "sm_occupancy"},
    }  # fmt: skip
    for name, fields in touched.items():
        found = read(FakeNvml({name: error}))._asdict()
        missing = {key for key, value in found.items() if value is None} - {"other_processes"}
        assert missing == fields - {"other_processes"}, name


def test_a_lost_gpu_gives_unknown_fields_and_comes_back() -> None:
    fake = FakeNvml()
    device = Device(fake, 0, 0)
    device.read(tuple)
    answers = dict(fake.gpus[0])
    fake.gpus[0].update({key: LOST for key in answers if key not in ("gpm", "mig")})
    device._slow_at = -1e9
    assert set(device.read(tuple)[2:]) == {None}
    fake.gpus[0].update(answers)
    assert device.read(tuple).tensor_active is None, "means need two snapshots in a row"
    assert device.read(tuple).tensor_active == 0.06


def test_a_gpm_that_keeps_failing_is_left_alone() -> None:
    fake = FakeNvml({"gpm_sample": NOT_SUPPORTED})
    read(fake, times=20)
    assert fake.calls["gpm_sample"] == nvml._GPM_TRIES


def test_one_counter_that_is_not_supported_or_no_number() -> None:
    sample = read(FakeNvml({"gpm_values": {2: 50.0, 3: None, 5: float("nan"), 10: 12.5}}))
    assert (sample.sm_active, sample.sm_occupancy, sample.tensor_active, sample.dram_active) == (0.5, None, None, 0.125)


def test_names_may_be_bytes() -> None:
    facts = Device(FakeNvml({"name": b"NVIDIA A100", "uuid": b"GPU-1"}), 0, 0).facts
    assert facts["name"] == "NVIDIA A100"
    assert facts["device_hash"] not in (None, "GPU-1")


# Others on the GPU


def running(*pids: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid) for pid in pids]


def test_others_are_those_that_do_not_descend_from_us(proc: Path) -> None:
    assert nvml.others(running(), tuple, proc) == 0
    assert nvml.others(running(os.getpid(), 2001, 2002), tuple, proc) == 0
    assert nvml.others(running(2002, 3000, 4000), tuple, proc) == 2
    assert nvml.others(running(2002, 3000), lambda: {3000}, proc) == 0


def test_others_are_unknown_in_a_container_and_without_a_list(proc: Path) -> None:
    assert nvml.others(None, tuple, proc) is None
    (proc / "self" / "ns" / "pid").unlink()
    assert nvml.others(running(3000), tuple, proc) is None
    (proc / "self" / "ns" / "pid").symlink_to("pid:[4026532198]")
    assert nvml.others(running(3000), tuple, proc) is None


# Means over a window


def sampler(tmp_path: Path, *devices: tuple[dict[str, Any], list[Sample]]) -> Counters:
    """A sampler that has taken these samples."""
    found = Counters(0.1, tmp_path / "counters.csv.gz")
    fake = FakeNvml(*(facts for facts, _ in devices))
    found._devices = nvml.devices(fake)
    found._driver = nvml.driver(fake)
    for index, (_, samples) in enumerate(devices):
        found._kept[index] = samples  # type: ignore[assignment]
    return found


def test_a_sample_counts_by_the_time_it_shares_with_the_window(tmp_path: Path) -> None:
    samples = [
        row(0, 100, util_gpu=1.0, power_w=100.0, tensor_active=0.5),  # shares 50
        row(100, 200, util_gpu=0.5, power_w=200.0, tensor_active=None),  # shares 100
        row(200, 300, util_gpu=0.0, power_w=300.0, tensor_active=0.1),  # shares 25
        row(300, 400, util_gpu=0.9, power_w=9e9, tensor_active=0.9),  # shares nothing
    ]
    found = sampler(tmp_path, ({}, samples)).between(50, 225)
    assert found["util_gpu"] == pytest.approx((1.0 * 50 + 0.5 * 100) / 175)
    assert found["power_w"] == pytest.approx((100 * 50 + 200 * 100 + 300 * 25) / 175)
    assert found["tensor_active"] == pytest.approx((0.5 * 50 + 0.1 * 25) / 75)
    assert found["samples"] == 3
    assert found["seconds"] == pytest.approx(175e-9)
    assert found["dram_active"] is None and found["other_processes"] is None and found["throttle_reasons"] is None


def test_a_window_without_samples_knows_the_gpu_and_nothing_more(tmp_path: Path) -> None:
    found = sampler(tmp_path, ({}, [row(0, 100, util_gpu=1.0, throttle=0)])).between(500, 600)
    assert (found["samples"], found["util_gpu"], found["throttle_reasons"]) == (0, None, None)
    assert (found["name"], found["gpus_sampled"], found["driver"]) == ("NVIDIA H100 80GB HBM3", 1, "580.65.06")
    assert (found["memory_bytes"], found["sm_mhz_max"]) == (80 << 30, 1980)


def test_reasons_carry_their_share_and_none_is_an_empty_list(tmp_path: Path) -> None:
    found = sampler(tmp_path, ({}, [row(0, 75, throttle=0x4), row(75, 100, throttle=0x4 | 0x40 | 0x1)])).between(0, 100)
    assert found["throttle_reasons"] == ["sw_power_cap", "hw_thermal_slowdown"]
    assert found["throttle_shares"] == [1.0, 0.25] and found["throttle_share"] == 1.0
    assert sampler(tmp_path, ({}, [row(0, 75, throttle=0x1)])).between(0, 100)["throttle_reasons"] == []
    some = sampler(tmp_path, ({}, [row(0, 75, throttle=0x1), row(75, 100, throttle=0x4)])).between(0, 100)
    assert some["throttle_share"] == 0.25


def test_a_process_gets_its_own_gpu(tmp_path: Path) -> None:
    two = sampler(
        tmp_path,
        ({"uuid": "GPU-AAAA-1"}, [row(0, 100, util_gpu=0.2, other_processes=0)]),
        ({"uuid": "GPU-bbbb-2"}, [row(0, 100, util_gpu=0.8, other_processes=3)]),
    )
    mine = two.between(0, 100, {"name": "x", "uuid": "bbbb-2"})
    assert (mine["util_gpu"], mine["gpus_sampled"], mine["other_processes"]) == (0.8, 1, 3)
    assert two.between(0, 100, {"uuid": "GPU-aaaa-1"})["util_gpu"] == 0.2
    for unknown in (None, {}, {"uuid": None, "index": 1}, {"uuid": "cccc"}):
        both = two.between(0, 100, unknown)
        assert (both["util_gpu"], both["gpus_sampled"], both["other_processes"]) == (0.5, 2, 3)
        assert both["device_hash"] is None and both["samples"] == 2 and both["seconds"] == pytest.approx(100e-9)


def test_a_section_holds_scalars_and_lists_of_scalars(tmp_path: Path) -> None:
    from traceanalyzer.trace.collector import read_block

    found = sampler(tmp_path, ({}, [row(0, 100, util_gpu=0.5, throttle=0x4)])).between(0, 100)
    block, sound = read_block({"schema": 1, "gpu": found})
    assert sound and block == {"schema": 1, "gpu": found}
    assert "uuid" not in str(found).lower() and "5d1c0a2e" not in str(found)


# The thread and its file


def test_it_samples_and_writes(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv.gz"
    fake = FakeNvml({"throttle": 0x4}, {"uuid": "GPU-2", "power": NOT_SUPPORTED})
    found = Counters(0.01, path, fake)
    assert found.between(0, time.time_ns()) == {}, "nothing is known yet"
    began = time.time_ns()
    found.start()
    until(lambda: found.between(began, time.time_ns()).get("samples", 0) >= 10)
    section = found.between(began, time.time_ns())
    assert not path.exists(), "it appears when complete"
    assert found.stop() == "counters.csv.gz"
    assert section["tensor_active"] == pytest.approx(0.06) and section["throttle_reasons"] == ["sw_power_cap"]
    assert section["power_w"] == 412.5, "the GPU that says it"
    assert section["sampling_ms"] > 0
    assert fake.allocated == 0, "what was allocated in the driver is given back"
    with gzip.open(path, "rt", encoding="ascii") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0].keys() == set(counters.HEADER)
    assert {line["gpu"] for line in rows} == {"0", "1"} and len(rows) >= 10
    last = rows[-2]
    assert began <= int(last["time_ns"]) <= time.time_ns()
    assert (last["util_gpu"], last["power_w"], last["throttle"], last["tensor_active"]) == (
        "1", "412.5", "sw_power_cap", "0.06",
    )  # fmt: skip
    assert rows[-1]["power_w"] == "" and rows[0]["tensor_active"] == ""
    assert [entry.name for entry in tmp_path.iterdir()] == ["counters.csv.gz"]


def test_the_file_keeps_fewer_rows_the_longer_it_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "ROWS_PER_STRIDE", 100)
    writer = counters._Writer(tmp_path / "c.csv.gz")
    for tick in range(10_000):
        writer.add([(0, row(tick, tick + 1))])
    assert writer.close()
    with gzip.open(tmp_path / "c.csv.gz", "rt") as stream:
        times = [int(line.split(",")[0]) for line in list(stream)[1:]]
    # 100 rows at each stride 1, 2, 4 ... 32 take 6 300 ticks; what is left at stride 64 is 57 rows.
    assert len(times) in range(655, 660)
    assert times[:100] == list(range(1, 101)) and times[-1] > 9_900


def test_memory_is_bounded(tmp_path: Path) -> None:
    found = Counters(0.01, tmp_path / "c.csv.gz", FakeNvml())
    found.start()
    until(lambda: bool(found.between(0, time.time_ns())))
    found.stop()
    assert found._kept[0].maxlen == pytest.approx(counters.KEPT_S / 0.01, abs=2)


def test_a_slow_driver_is_asked_less_often(tmp_path: Path) -> None:
    fake = FakeNvml()

    def slowly(handle: int) -> Any:
        fake.calls["power"] = fake.calls.get("power", 0) + 1
        time.sleep(0.05)
        return 1000

    fake.nvmlDeviceGetPowerUsage = slowly  # type: ignore[method-assign]
    found = Counters(0.01, tmp_path / "c.csv.gz", fake)
    began = time.monotonic()
    found.start()
    until(lambda: fake.calls.get("power", 0) > 3)
    taken = time.monotonic() - began
    found.stop()
    assert taken > 0.7, "three times 0.05 s, and four times as long a rest after each"


def test_a_disk_that_is_full_ends_the_file_and_not_the_sampling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Counters(0.01, tmp_path / "gone" / "c.csv.gz", FakeNvml())
    began = time.time_ns()
    found.start()
    until(lambda: found.between(began, time.time_ns()).get("samples", 0) >= 3)
    assert found.stop() is None
    assert capsys.readouterr().err.count("GPU counters are not written") == 1


def test_without_the_driver_all_is_unknown_and_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The real module, on a machine that has no driver."""
    with contextlib.suppress(pynvml.NVMLError_LibraryNotFound):
        pynvml.nvmlInit()
        pytest.skip("this machine has NVIDIA's driver")
    found = Counters(0.01, tmp_path / "c.csv.gz")
    found.start()
    assert found._thread is not None
    found._thread.join(TIMEOUT_S)
    assert found.between(0, time.time_ns()) == {} and found.stop() is None
    said = capsys.readouterr()
    assert said.err == "traceanalyzer: no GPU counters: NVML Shared Library Not Found\n" and said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_without_the_module_all_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = Counters(0.01, tmp_path / "c.csv.gz")
    found.start()
    assert found._thread is not None
    found._thread.join(TIMEOUT_S)
    assert found.between(0, 1) == {} and found.stop() is None
    assert "nvidia-ml-py is not installed" in capsys.readouterr().err


def test_no_gpu_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeNvml()
    fake.gpus = []
    found = Counters(0.01, tmp_path / "c.csv.gz", fake)
    found.start()
    assert found._thread is not None
    found._thread.join(TIMEOUT_S)
    assert found.stop() is None and "lists no GPU" in capsys.readouterr().err


def test_importing_it_loads_no_pynvml() -> None:
    code = "import sys, traceanalyzer.collect.counters; print('pynvml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    assert done.stdout == "False\n"
