"""However a process ends, what it recorded is whole and its exit is the one it would have had without us."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.collect.recorded import finish, record, start
from tests.collect.runtime import Runtime


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        ("os._exit(3)", 3, ""),
        ("sys.exit(4)", 4, ""),
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("os.kill(os.getpid(), __import__('signal').SIGTERM); time.sleep(20)", -signal.SIGTERM, ""),
        ("os.kill(os.getpid(), __import__('signal').SIGINT); time.sleep(20)", -signal.SIGINT, "KeyboardInterrupt"),
        ("threading.Thread(target=os._exit, args=(6,)).start(); time.sleep(20)", 6, ""),
    ],
)
def test_an_end_in_the_middle_of_a_window(tmp_path: Path, end: str, code: int, last: str) -> None:
    found = record(tmp_path / "r", f"tell(w=steps(2))\n{end}")
    assert found.code == code
    assert found.errors.strip().split("\n")[-1] == last
    assert found.outline() == [(1, "exit", [1, 2])]


def test_sigterm_from_outside_between_two_steps(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "r", mode="full")
    process = start(runtime, "tell(w=steps(3))\ntime.sleep(60)\n")
    until = time.monotonic() + 60
    told = runtime.folder / "script.out"
    while not told.exists() or not told.read_text().endswith("\n"):  # it has taken its steps
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    found = finish(runtime, process)
    assert found.code == -signal.SIGTERM
    assert found.outline() == [(1, "exit", [1, 2, 3])]


@pytest.mark.parametrize(
    ("name", "place", "error"),
    [
        ("SIGTERM", "stop", ""),
        ("SIGTERM", "save", ""),
        ("SIGINT", "save", "KeyboardInterrupt"),
        ("SIGALRM", "stop", "Mine"),
    ],
)
def test_a_signal_during_our_own_close_waits(tmp_path: Path, name: str, place: str, error: str) -> None:
    found = record(
        tmp_path / "r",
        f"""
import signal
class Mine(Exception): pass
def handler(*_): raise Mine
signal.signal(signal.SIGALRM, handler)
kind = recorder.session.Session
original = kind.{place}
def late(self, *arguments):
    os.kill(os.getpid(), signal.{name})
    for _ in range(1000): pass
    time.sleep(0.05)
    return original(self, *arguments)
kind.{place} = late
tell(w=steps(4))
tell(w=steps(1))
""",
    )
    assert found.code == {"SIGTERM": -signal.SIGTERM, "SIGINT": -signal.SIGINT, "SIGALRM": 1}[name]
    assert error in found.errors and (error or not found.errors)
    assert found.told == [{"w": [1, 1, 1, 1]}]
    assert found.outline() == [(1, "steps", [1, 2, 3, 4])]


def test_a_handler_of_the_script_stays_and_a_default_one_comes_back(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
import signal
seen = []
signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
steps(6)
os.kill(os.getpid(), signal.SIGTERM)
tell(seen=seen, w=steps(2), interrupt=signal.getsignal(signal.SIGINT) is signal.default_int_handler)
""",
    )
    assert (found.code, found.told) == (0, [{"seen": [signal.SIGTERM], "w": [2, 2], "interrupt": True}])
    assert found.outline() == [(1, "steps", [1, 2, 3, 4]), (2, "exit", [5, 6, 7, 8])]


def test_nothing_is_patched_where_nothing_is_recorded(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
import signal
own = os._exit
tell(w=steps(3), default=signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, exit=own.__module__ == "posix",
     threads=threading.active_count(), enter=torch.autograd.profiler.record_function.__enter__.__module__)
""",
        mode="sample",
    )
    assert found.told == [
        {"w": [0] * 3, "default": True, "exit": True, "threads": 1, "enter": "torch.autograd.profiler"}
    ]


CHILD = """
import multiprocessing
def child(number):
    torch.set_num_threads(1)
    steps(2)
    if number == 1: sys.exit(4)
    if number == 2: os._exit(5)
    if number == 3: raise ValueError
    if number == 4:
        open(f"ready-{os.getpid()}", "w").close()
        while True: time.sleep(0.01)
if __name__ == "__main__":
    context = multiprocessing.get_context(METHOD)
    before = steps(BEFORE)
    children = [context.Process(target=child, args=(number,)) for number in ENDS]
    for one in children: one.start()
    for one in children[:-1]: one.join()
    until(lambda: os.path.exists(f"ready-{children[-1].pid}"))
    children[-1].terminate()
    children[-1].join()
    tell(pids=[one.pid for one in children], codes=[one.exitcode for one in children], before=before, after=steps(1),
         failures=guard.failures)
"""
CODES = [0, 4, 5, 1, -signal.SIGTERM]
"""By the child's number."""


@pytest.mark.parametrize(
    ("method", "before", "ends"),
    [("fork", 0, range(5)), ("fork", 3, range(5)), ("spawn", 1, (0, 2, 4)), ("forkserver", 1, (1, 3, 4))],
    ids=["fork", "fork in a window", "spawn", "forkserver"],
)
def test_multiprocessing_children(tmp_path: Path, method: str, before: int, ends: Sequence[int]) -> None:
    """All ends by fork; by the others, whose children import torch anew, half of them each."""
    script = CHILD.replace("METHOD", repr(method)).replace("BEFORE", str(before)).replace("ENDS", repr(tuple(ends)))
    found = record(tmp_path / "r", script, fresh=method != "fork")
    (told,) = found.told
    assert told["codes"] == [CODES[end] for end in ends]
    assert (told["before"], told["failures"]) == ([1] * before, {})
    left = {(one.meta["pid"], one.meta["window"]): one for one in found.windows()}
    first = before if method == "fork" else 0
    for pid in told["pids"]:
        assert left.pop((pid, 1)).labels == [first + 1, first + 2]
    # A window that is open when the process forks is closed first: no child inherits a session.
    if method == "fork" and before:
        assert [one.meta["closed_by"] for one in left.values()] == ["flush", "exit"]
    assert [n for one in left.values() for n in one.labels] == list(range(1, before + 2))


def test_a_fork_without_an_exec_is_free_of_the_session(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
steps(2)
child = os.fork()
if not child:
    tell(child=True, window=recorder.recorder.window is None, enabled=torch.autograd.profiler._is_profiler_enabled,
         w=steps(5), failures=guard.failures)
    os._exit(3)
tell(code=os.waitpid(child, 0)[1] >> 8, w=steps(2), failures=guard.failures)
""",
    )
    assert found.code == 0
    assert found.told == [
        {"child": True, "window": True, "enabled": False, "w": [1, 1, 1, 1, 2], "failures": {}},
        {"code": 3, "w": [2, 2], "failures": {}},
    ]
    assert sorted(one.labels for one in found.windows()) == [[1, 2], [3, 4], [3, 4, 5, 6], [7]]


def test_a_subprocess_is_not_a_fork(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        "import subprocess\nsteps(1)\nsubprocess.run(['true'], check=True)\ntell(w=steps(1))",
    )
    assert (found.code, found.told) == (0, [{"w": [1]}])


def test_a_child_that_another_thread_forked_meanwhile_hears_signals(tmp_path: Path) -> None:
    """Nobody is left in it who would give back the handlers that the main thread had taken."""
    found = record(
        tmp_path / "r",
        """
import signal
from _traceanalyzer_inside import exits
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(7))
children, holds = [], threading.Event()
ready, tell_ready = os.pipe()
def fork():
    holds.wait(30)
    child = os.fork()
    if not child:
        os.write(tell_ready, b"x")
        time.sleep(20)
        os._exit(0)
    children.append(child)
other = threading.Thread(target=fork)
other.start()
with exits.held():
    holds.set()
    other.join()
os.read(ready, 1)  # what comes while Python itself makes the child is lost
os.kill(children[0], signal.SIGTERM)
tell(code=os.waitpid(children[0], 0)[1] >> 8)
""",
    )
    assert (found.code, found.told) == (0, [{"code": 7}])
