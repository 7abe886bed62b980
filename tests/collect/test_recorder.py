"""The `python` recorder in processes of its own: which steps land in which window."""

from __future__ import annotations

from pathlib import Path

from tests.collect.recorded import record


def test_full_loses_no_step_and_opens_with_the_first(tmp_path: Path) -> None:
    found = record(tmp_path / "r", "tell(windows=steps(10), failures=guard.failures)", fresh=True)
    assert (found.code, found.errors) == (0, "")
    assert found.told == [{"windows": [1, 1, 1, 1, 2, 2, 2, 2, 3, 3], "failures": {}}]
    assert found.outline() == [(1, "steps", [1, 2, 3, 4]), (2, "steps", [5, 6, 7, 8]), (3, "exit", [9, 10])]
    for left in found.windows():
        assert left.meta["steps"] == len(left.labels) == left.count("aten::mm")
        assert left.meta["recorder"] == "python"
        assert min(left.meta["open_ms"], left.meta["stop_ms"], left.meta["save_ms"]) > 0
        assert left.trace["record_shapes"] == 1


def test_a_scope_around_everything_does_not_stop_the_rotation(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
outer = torch.autograd.profiler.record_function("outer")

@outer
def run():
    with torch.autograd.profiler.record_function("inner"):
        return steps(14)

windows = run()
torch.ones(3) + 1
tell(windows=windows, more=steps(3), failures=guard.failures, scopes=len(arbiter.scopes), kept=len(arbiter.unfinished))
""",
    )
    assert found.code == 0
    assert found.told == [
        {"windows": [1] * 4 + [2] * 4 + [3] * 4 + [4] * 2, "more": [4, 4, 5], "failures": {}, "scopes": 0, "kept": 0}
    ]
    assert [left.labels for left in found.windows()] == [
        [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16], [17]
    ]  # fmt: skip


def test_a_scope_that_is_left_in_a_later_window_is_in_none(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
kind, open_at_start = recorder.session.Session, []
start = kind.start
def watched(self):
    open_at_start.append(len(arbiter.scopes))
    start(self)
kind.start = watched
def work():
    for _ in range(50): _matrix @ _matrix
from driven import _matrix
steps(1)
for _ in range(20):
    open_ones = [torch.autograd.profiler.record_function(f"long {n}").__enter__() for n in range(20)]
    for _ in range(6): step(work)
    for scope in reversed(open_ones):
        scope.__exit__(None, None, None)
tell(failures=guard.failures, open=max(open_at_start), windows=len(open_at_start))
""",
    )
    assert (found.code, found.told) == (0, [{"failures": {}, "open": 0, "windows": 31}])
    assert [n for left in found.windows() for n in left.labels] == list(range(1, 122))


def test_threads_share_windows_and_none_loses_a_step(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
taken = []
threads = [threading.Thread(target=lambda: taken.extend(steps(40))) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
tell(taken=sorted(taken), failures=guard.failures)
""",
        steps=16,
    )
    assert found.code == 0
    assert found.told == [{"taken": sorted([1, 2, 3, 4, 5, 6, 7] * 16 + [8] * 8), "failures": {}}]
    assert sorted(n for left in found.windows() for n in left.labels) == list(range(1, 121))


def test_a_step_of_another_thread_that_does_not_end_holds_the_next_window_back(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
arbiters.PATIENCE_S = 0.2
leave = threading.Event()
inside = threading.Event()
def work():
    inside.set()
    leave.wait(30)
other = threading.Thread(target=lambda: step(work))
other.start()
inside.wait(30)
first = steps(5)
held = steps(2)
leave.set()
other.join()
time.sleep(0.15)
tell(first=first, held=held, after=steps(2), failures=guard.failures)
""",
    )
    assert found.code == 0
    assert found.told == [{"first": [1, 1, 1, 0, 0], "held": [0, 0], "after": [2, 2], "failures": {}}]
    assert found.outline() == [(1, "steps", [1, 2, 3, 4]), (2, "exit", [9, 10])]


def test_a_window_closes_in_time_when_no_step_comes_and_after_a_long_step(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
first = steps(2)
until(lambda: recorder.recorder.window is None)
second = [step(lambda: time.sleep(0.5))]
until(lambda: recorder.recorder.window is None)
tell(first=first, second=second, failures=guard.failures)
""",
        max_ms=400,
    )
    assert (found.code, found.told) == (0, [{"first": [1, 1], "second": [2], "failures": {}}])
    assert found.outline() == [(1, "time", [1, 2]), (2, "time", [3])]
    (_, long) = found.windows()
    (label,) = (event for event in long.trace["traceEvents"] if event.get("name") == "ta.step[decode n=3]")
    assert label["dur"] > 500_000


def test_sample_opens_when_asked_and_says_what_it_has_seen(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
seen = lambda: layout.read_word(process.ring, layout.RING_SEEN_WINDOW)
done = lambda: layout.read_word(process.ring, layout.RING_WINDOWS_DONE)
before = steps(3)
control(layout.MAX_STEPS, 2)
control(layout.MAX_MS, 30000)
control(layout.WINDOW_ID, 7)
one = steps(3) + [seen(), done()]
time.sleep(0.15)
control(layout.MAX_STEPS, 100)
control(layout.WINDOW_ID, 9)
two = steps(3) + [layout.read_word(process.ring, layout.RING_WINDOW)]
control(layout.FLUSH_ID, 1)
until(lambda: done() == 2)
after = steps(2) + [seen(), layout.read_word(process.ring, layout.RING_WINDOW)]
tell(before=before, one=one, two=two, after=after, failures=guard.failures)
""",
        mode="sample",
    )
    assert (found.code, found.errors) == (0, "")
    assert found.told == [
        {"before": [0] * 3, "one": [7, 7, 0, 7, 1], "two": [9, 9, 9, 9], "after": [0, 0, 9, 0], "failures": {}}
    ]
    assert found.outline() == [(7, "steps", [4, 5]), (9, "flush", [7, 8, 9])]


def test_no_window_without_a_supervisor_or_after_its_stop(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
control(layout.HEARTBEAT_NS, time.time_ns() - layout.HEARTBEAT_LIMIT_NS - 1)
dead = steps(2)
control(layout.HEARTBEAT_NS, time.time_ns())
control(layout.STOPPED, 1)
time.sleep(0.15)
stopped = steps(2)
control(layout.STOPPED, 0)
time.sleep(0.15)
alive = steps(2)
control(layout.STOPPED, 1)
until(lambda: recorder.recorder.window is None)
tell(dead=dead, stopped=stopped, alive=alive, again=steps(2), failures=guard.failures)
""",
    )
    assert (found.code, found.told) == (
        0, [{"dead": [0, 0], "stopped": [0, 0], "alive": [1, 1], "again": [0, 0], "failures": {}}]
    )  # fmt: skip
    assert found.outline() == [(1, "flush", [5, 6])]


def test_a_request_that_cannot_be_followed_is_answered_all_the_same(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
control(layout.HEARTBEAT_NS, 1)
control(layout.WINDOW_ID, 3)
tell(got=steps(1), seen=layout.read_word(process.ring, layout.RING_SEEN_WINDOW))
""",
        mode="sample",
    )
    assert found.told == [{"got": [0], "seen": 3}]
    assert not found.windows()


def test_on_demand_only_tells_which_steps_are_in_the_plan(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
import signal
scopes = lambda: layout.read_word(process.ring, layout.RING_OPEN_SCOPES)
idle = steps(2)
control(layout.WINDOW_ID, 5)
control(layout.RECORD_FROM_NS, time.time_ns() + int(0.6e9))
control(layout.RECORD_UNTIL_NS, time.time_ns() + int(1.2e9))
early = steps(1)
with torch.autograd.profiler.record_function("not in it"):
    early.append(scopes())
time.sleep(0.2)
outer = torch.autograd.profiler.record_function("request").__enter__()
early.append(scopes())
time.sleep(0.5)
inside = steps(2) + [scopes(), layout.read_word(process.ring, layout.RING_SEEN_WINDOW)]
time.sleep(0.6)
after = steps(1) + [scopes()]
time.sleep(0.5)
later = steps(1) + [scopes()]
outer.__exit__(None, None, None)
tell(idle=idle, early=early, inside=inside, after=after, later=later, failures=guard.failures,
     untouched=signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and os._exit.__module__ in ("posix", "nt"))
""",
        mode="sample",
        recorder="ondemand",
    )
    assert (found.code, found.errors) == (0, "")
    assert found.told == [
        {
            "idle": [0, 0], "early": [0, 0, 1], "inside": [5, 5, 1, 5], "after": [0, 1], "later": [0, 0],
            "failures": {}, "untouched": True,
        }
    ]  # fmt: skip
    assert not found.windows()


def test_a_full_disk_ends_the_recording_and_not_the_run(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
import resource
first = steps(5)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
tell(first=first, second=steps(3), third=steps(6), failures=sorted(guard.failures),
     counted=layout.read_word(process.ring, layout.RING_FAILURES))
""",
    )
    assert (found.code, found.errors) == (0, "")
    assert found.told == [
        {"first": [1, 1, 1, 1, 2], "second": [2, 2, 2], "third": [0] * 6, "failures": ["save"], "counted": 1}
    ]
    assert found.outline() == [(1, "steps", [1, 2, 3, 4])]


def test_with_stacks_and_without_shapes(tmp_path: Path) -> None:
    found = record(tmp_path / "r", "tell(w=steps(4), f=guard.failures)", with_stack=True, record_shapes=False)
    assert (found.code, found.told) == (0, [{"w": [1] * 4, "f": {}}])
    (left,) = found.windows()
    assert left.trace["with_stack"] == 1 and "record_shapes" not in left.trace
    assert any(event.get("cat") == "python_function" for event in left.trace["traceEvents"])


OLDER = """
class Older:
    def __init__(self, **options):
        raise TypeError
torch._C._profiler._ExperimentalConfig = Older
"""


def test_an_older_torch_records_the_main_thread_which_alone_may_stop(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        OLDER
        + """
first = steps(4)
time.sleep(0.6)
still = recorder.recorder.window is not None
second = steps(2)
other = []
thread = threading.Thread(target=lambda: other.extend(steps(2)))
thread.start()
thread.join()
tell(first=first, still=still, second=second, other=other, failures=guard.failures)
""",
        max_ms=300,
        steps=100,
    )
    assert (found.code, found.told) == (
        0, [{"first": [1] * 4, "still": True, "second": [2] * 2, "other": [2] * 2, "failures": {}}]
    )  # fmt: skip
    assert found.outline() == [(1, "time", [1, 2, 3, 4]), (2, "exit", [5, 6])]


def test_an_older_torch_records_no_other_thread_on_its_own(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        OLDER
        + """
taken = []
thread = threading.Thread(target=lambda: taken.extend(steps(4)))
thread.start()
thread.join()
tell(taken=taken, failures=list(guard.failures))
""",
    )
    assert (found.code, found.told) == (0, [{"taken": [0] * 4, "failures": ["thread"]}])
    assert not found.windows()


def test_a_long_operation_of_another_thread_holds_the_next_window_back(tmp_path: Path) -> None:
    """Its end would be written into memory of the session that is gone; a thread that sleeps is no reason to wait."""
    found = record(
        tmp_path / "r",
        """
arbiters.PATIENCE_S = 0.1
recorder.LONGEST_OPERATION_S = 0
large = torch.ones(2500, 2500)
working, sleeping = threading.Event(), threading.Event()
ended = []
def work():
    working.set()
    for _ in range(3): large @ large @ large
    ended.append(time.monotonic_ns())
def sleep():
    sleeping.set()
    time.sleep(30)
threading.Thread(target=sleep, daemon=True).start()
sleeping.wait(30)
before = steps(9)
thread = threading.Thread(target=work)
thread.start()
working.wait(30)
time.sleep(0.05)
held = 0
taken = steps(3)
opened = None
while opened is None:
    if step() > 3: opened = time.monotonic_ns()
    elif thread.is_alive(): held += 1
    time.sleep(0.01)
thread.join()
tell(before=before, taken=taken, held=held > 0, failures=guard.failures)
""",
    )
    assert (found.code, found.told) == (
        0, [{"before": [1] * 4 + [2] * 4 + [3], "taken": [3] * 3, "held": True, "failures": {}}]
    )  # fmt: skip


def test_a_window_that_was_withdrawn_is_not_opened(tmp_path: Path) -> None:
    found = record(
        tmp_path / "r",
        """
def ask(number, count):
    with open(os.path.join(os.environ["DRIVEN"], "control"), "r+b") as block:
        for offset, value in ((layout.MAX_STEPS, count), (layout.MAX_MS, 30000), (layout.WINDOW_ID, number)):
            block.seek(offset)
            block.write(value.to_bytes(8, "little"))
before = steps(2)
ask(1, 0)
withdrawn = steps(3)
time.sleep(0.2)  # it asks again only after a while
ask(2, 2)
tell(before=before, withdrawn=withdrawn, asked=steps(4), failures=guard.failures)
""",
        mode="sample",
    )
    assert found.told == [{"before": [0, 0], "withdrawn": [0, 0, 0], "asked": [2, 2, 0, 0], "failures": {}}]
