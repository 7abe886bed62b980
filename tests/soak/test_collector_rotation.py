"""Windows one after the other for minutes, over everything that may share a process with them, on a perturbed heap.

SOAK_SECONDS sets how long it goes on. A crash of the recorded process fails it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.collect.recorded import record

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("SOAK_SECONDS", "120"))
SCRIPT = """
from torch.profiler import profile
matrix = torch.ones(48, 48)
large = torch.ones(700, 700)
end = time.monotonic() + SECONDS
over = lambda: time.monotonic() >= end
marked = torch.autograd.profiler.record_function
recorded, lock, users = [], threading.Lock(), []

def work():
    with marked("layer"):
        for _ in range(40): matrix @ matrix

def serve(pause):
    while not over():
        with marked("request"):
            for _ in range(7):
                window = step(work)
                with lock: recorded.append(window)
        time.sleep(pause)

def compute():
    while not over():
        large @ large

def hold():
    while not over():
        with marked("held"):
            matrix + 1
            time.sleep(0.3)

def measure():
    while not over():
        with profile() as mine:
            for _ in range(20): matrix + 1
        mine.export_chrome_trace("user.json")
        events = json.loads(open("user.json").read())["traceEvents"]
        users.append(sum(event.get("name") == "aten::add" for event in events))
        time.sleep(1.5)

def fork():
    while not over():
        child = os.fork()
        if not child:
            os._exit(0 if torch.ones(2).sum() == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        time.sleep(2)

jobs = [(serve, 0.0), (serve, 0.01), (serve, 0.1), (compute,), (hold,), (measure,), (fork,)]
threads = [threading.Thread(target=job, args=args) for job, *args in jobs]
for thread in threads: thread.start()
for thread in threads: thread.join()
tell(windows=len(set(recorded) - {0}), recorded=sum(map(bool, recorded)), steps=len(recorded), users=users,
     failures=guard.failures)
"""


def test_nothing_crashes_and_every_window_is_whole(tmp_path: Path) -> None:
    found = record(tmp_path / "r", SCRIPT.replace("SECONDS", str(SECONDS)), timeout=SECONDS * 2 + 120)
    assert found.code == 0, found.errors
    (told,) = found.told
    assert told["failures"] == {}
    assert set(told["users"]) == {20}
    assert told["windows"] > SECONDS / 10
    labels = [number for left in found.windows() for number in left.labels]
    assert len(labels) == len(set(labels)) <= told["steps"]
    # Labels that were about to be entered when the script's profiler or a fork closed the window are missing.
    assert len(labels) >= 0.8 * told["recorded"]


def test_one_thread_and_two_hundred_windows_lose_no_step(tmp_path: Path) -> None:
    found = record(tmp_path / "r", "tell(w=len(set(steps(400))), f=guard.failures)", timeout=300, steps=2)
    assert (found.code, found.told) == (0, [{"w": 200, "f": {}}])
    assert [number for left in found.windows() for number in left.labels] == list(range(1, 401))
