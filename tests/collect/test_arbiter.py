"""Sessions of the script and ours never meet: the script's comes first, whole and without our labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collect.recorded import Recorded, record

READ = """
import json
def read(profiler, name):
    profiler.export_chrome_trace(name)
    events = json.loads(open(name).read())["traceEvents"]
    named = [event["name"] for event in events if event.get("ph") == "X"]
    return {"adds": named.count("aten::add"), "labels": [name for name in named if name.startswith("ta.step")]}
"""


def numbers(found: Recorded) -> list[int]:
    return [n for left in found.windows() for n in left.labels]


def test_the_scripts_profiler_inside_a_window_of_ours(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        READ
        + """
from torch.profiler import profile
before = steps(2)
with profile() as mine:
    during = steps(3)
    foreign = layout.read_word(process.ring, layout.RING_FOREIGN)
    for _ in range(5): torch.ones(3) + 1
after = steps(2)
user = read(mine, "user.json")
table = "aten::add" in mine.key_averages().table()
tell(before=before, during=during, after=after, foreign=[foreign, layout.read_word(process.ring, layout.RING_FOREIGN)],
     user=user, table=table, failures=guard.failures)
""",
    )
    assert (found.code, found.errors) == (0, "")
    assert found.told == [
        {
            "before": [1, 1], "during": [0, 0, 0], "after": [2, 2], "foreign": [1, 0],
            "user": {"adds": 5, "labels": []}, "table": True, "failures": {},
        }
    ]  # fmt: skip
    assert found.outline() == [(1, "user_profiler", [1, 2]), (2, "exit", [6, 7])]
    assert not any(left.count("aten::add") for left in found.windows())


def test_our_window_is_due_while_the_scripts_profiler_runs(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        READ
        + """
with torch.autograd.profiler.profile() as mine:
    during = steps(3)
    torch.ones(3) + 1
after = steps(2)
tell(during=during, after=after, user=read(mine, "user.json"), failures=guard.failures)
""",
    )
    assert found.code == 0
    assert found.told == [
        {"during": [0] * 3, "after": [1, 1], "user": {"adds": 1, "labels": []}, "failures": {}}
    ]  # fmt: skip
    assert found.outline() == [(1, "exit", [4, 5])]


def test_a_scheduled_profiler_takes_turns_with_ours(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        READ
        + """
import warnings
from torch.profiler import profile, schedule
warnings.simplefilter("ignore")
user, taken = [], []
plan = schedule(wait=2, warmup=1, active=2, repeat=2)
with profile(schedule=plan, on_trace_ready=lambda it: user.append(read(it, f"{len(user)}.json"))) as mine:
    for _ in range(12):
        taken += steps(1)
        torch.ones(3) + 1
        mine.step()
tell(taken=taken, user=user, after=steps(1), failures=guard.failures)
""",
        steps=3,
    )
    assert found.code == 0
    # The script's profiler prepares at its second step's end and is done with its fifth.
    assert found.told == [
        {
            "taken": [1, 1, 0, 0, 0, 2, 2, 0, 0, 0, 3, 3], "user": [{"adds": 2, "labels": []}] * 2, "after": [3],
            "failures": {},
        }
    ]  # fmt: skip
    assert numbers(found) == [1, 2, 6, 7, 11, 12, 13]


def test_the_scripts_profiler_in_another_thread(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        READ
        + """
from torch.profiler import profile
users = []
def use():
    for number in range(12):
        with profile() as mine:
            for _ in range(20):
                torch.ones(3) + 1
                time.sleep(0.001)
        users.append(read(mine, "user.json"))
        time.sleep(0.03 if number % 2 else 0.1)
thread = threading.Thread(target=use)
thread.start()
taken = []
while thread.is_alive():
    taken += steps(1)
    time.sleep(0.002)
thread.join()
tell(users=users, taken=taken, failures=guard.failures)
""",
        steps=5,
    )
    assert found.code == 0
    (told,) = found.told
    assert told["users"] == [{"adds": 20, "labels": []}] * 12
    assert told["failures"] == {}
    labelled, recorded = numbers(found), [number for number, window in enumerate(told["taken"], 1) if window]
    assert set(labelled) <= set(recorded)
    # The script's profiler may start between a boundary and the label of its step: one step for each session, at most.
    assert len(recorded) - len(labelled) <= len(told["users"])
    assert 0 in told["taken"] and max(told["taken"]) > 3


OLDER = """
class Older:
    def __init__(self, **options):
        raise TypeError
torch._C._profiler._ExperimentalConfig = Older
steps(1)
"""


@pytest.mark.parametrize("before", ["", OLDER], ids=["all threads", "older torch"])
def test_profilers_in_several_threads_against_windows_in_several_threads(tmp_path: Path, before: str) -> None:
    """With an older torch the session belongs to the main thread and cannot be stopped for another one's sake."""
    found = record(
        tmp_path / "r",
        before
        + """
from torch.profiler import profile
turn = threading.Lock()
def use():
    for _ in range(6):
        with turn, profile():
            torch.ones(3) + 1
        time.sleep(0.02)
threads = [threading.Thread(target=use) for _ in range(2)]
threads += [threading.Thread(target=steps, args=(200,)) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
time.sleep(0.06)
tell(failures=guard.failures, foreign=arbiter.foreign)
""",
        steps=5,
    )
    assert (found.code, found.told) == (0, [{"failures": {}, "foreign": 0}])
    found.windows()


def test_a_profiler_that_fails_to_start_keeps_nobody_away(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
before = steps(1)
try:
    torch.autograd._enable_profiler("no", "profiler")
except TypeError:
    before.append(arbiter.foreign)
again = steps(1)
torch.autograd._disable_profiler()
before.append(arbiter.foreign)
tell(again=again, before=before, after=steps(1), failures=guard.failures)
""",
    )
    assert (found.code, found.told) == (
        0, [{"again": [2], "before": [1, 0, 0], "after": [3], "failures": {}}]
    )  # fmt: skip
    assert found.outline() == [(1, "user_profiler", [1]), (2, "user_profiler", [2]), (3, "exit", [3])]


def test_other_kinds_of_sessions_count_too(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
from torch.autograd import profiler, profiler_legacy
taken = [steps(1)]
with profiler.emit_itt():
    taken.append(steps(1))
taken.append(steps(1))
with profiler_legacy.profile() as mine:
    taken.append(steps(1))
taken.append(steps(1))
from torch.profiler import ExecutionTraceObserver
watcher = ExecutionTraceObserver().register_callback("execution.json")
watcher.start()
taken.append(steps(1))
watcher.stop()
tell(taken=taken, failures=guard.failures)
""",
    )
    assert (found.code, found.told) == (0, [{"taken": [[1], [0], [2], [0], [3], [3]], "failures": {}}])
    assert numbers(found) == [1, 3, 5, 6]


def test_a_scope_entered_in_the_scripts_session_is_not_left_in_ours(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
from torch.profiler import profile
steps(1)
for _ in range(10):
    with profile() as mine:
        scopes = [torch.autograd.profiler.record_function(f"s{n}").__enter__() for n in range(50)]
        del mine
    steps(2)
    for scope in scopes: scope.__exit__(None, None, None)
tell(failures=guard.failures, open=len(arbiter.scopes))
""",
    )
    assert (found.code, found.told) == (0, [{"failures": {}, "open": 0}])
    assert numbers(found) == list(range(1, 22))


def test_torchscript_and_dynamo_still_understand_record_function(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
steps(1)
def plain(x):
    with torch.autograd.profiler.record_function("named"):
        x = x + 1
    return x
scripted = torch.jit.script(plain)
compiled = torch.compile(plain, backend="eager", fullgraph=True)
tell(scripted=scripted(torch.ones(1)).tolist(), compiled=compiled(torch.ones(1)).tolist(), failures=guard.failures)
""",
    )
    assert (found.code, found.told) == (0, [{"scripted": [2.0], "compiled": [2.0], "failures": {}}])
