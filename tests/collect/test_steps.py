"""The wrapper around one step, on functions that do nothing: what it writes, lets through and leaves alone."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.collect.runtime import Runtime, Step, read_ring
from traceanalyzer.analysis.steps import labels
from traceanalyzer.collect.inside import guard, layout, runtime, steps
from traceanalyzer.collect.inside.description import Compiled, Description

DECODE = Description("decode", 2, 2, 30, 30, 0, 0, 0)


class Recording:
    """This process as a recorded one: its ring, and the windows that a recorder would have open."""

    def __init__(self, folder: Path) -> None:
        self.runtime = Runtime(folder)
        self.window = 0
        self.boundaries = 0

    def boundary(self) -> int:
        self.boundaries += 1
        return self.window

    @property
    def steps(self) -> list[Step]:
        return read_ring(self.runtime.folder / "rings" / f"{os.getpid()}.ring")


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    found = Recording(tmp_path / "run")
    process = runtime.Process()
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    assert process.attach(str(found.runtime.folder))
    for module in (runtime, steps):
        monkeypatch.setattr(module, "process", process)
    monkeypatch.setattr(steps, "_boundary", found.boundary)
    guard.failures.clear()
    yield found
    guard.failures.clear()


def describe(*_: Any) -> Description:
    return DECODE


class Engine:
    """What is wrapped in these tests."""

    def step(self, value: Any = None, *, named: Any = None) -> Any:
        """Says what it was given."""
        return value, named

    def outer(self) -> Any:
        return self.step(1)

    def fail(self) -> None:
        raise KeyError("theirs")


def wrapped(method: str, say: Any = describe) -> Any:
    made = type("Made", (Engine,), {method: steps.annotate(getattr(Engine, method), say)})
    return made()


def test_a_step_is_one_record(recording: Recording) -> None:
    before = time.time_ns()
    assert wrapped("step").step(3, named="x") == (3, "x")
    (step,) = recording.steps
    assert step.sums == ("decode", 2, 2, 30, 30) and (step.flags, step.window) == (0, 0)
    assert before <= step.start_ns <= step.start_ns + step.duration_ns <= time.time_ns()
    assert step.thread == threading.get_native_id() & 0xFFFF_FFFF
    assert recording.boundaries == 1


def test_what_is_unknown_is_left_out_of_the_label_and_0_in_the_ring(recording: Recording) -> None:
    wrapped("step", lambda *_: Description("prefill", 7)).step()
    (step,) = recording.steps
    assert step.sums == ("prefill", 7, 0, 0, 0) and step.prefill_tokens == 7
    assert steps.label(4, Description("prefill", 7)) == "ta.step[prefill n=4 tokens=7]"


def test_only_the_outermost_call_is_a_step(recording: Recording) -> None:
    engine = wrapped("step")
    type(engine).outer = steps.annotate(Engine.outer, lambda *_: Description("mixed"))
    assert engine.outer() == (1, None)
    engine.step()
    assert [step.phase for step in recording.steps] == ["mixed", "decode"]
    assert recording.boundaries == 2


def test_a_call_that_is_no_step_leaves_room_for_one_inside(recording: Recording) -> None:
    engine = wrapped("step")
    type(engine).outer = steps.annotate(Engine.outer, lambda *_: None)
    engine.outer()
    assert [step.phase for step in recording.steps] == ["decode"]


def test_an_error_of_the_host_passes_and_the_next_step_is_one_again(recording: Recording) -> None:
    engine = wrapped("fail")
    for _ in range(2):
        with pytest.raises(KeyError, match="theirs"):
            engine.fail()
    assert [step.flags for step in recording.steps] == [layout.FLAG_FAILED] * 2
    assert not guard.failures


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_the_host_passes(recording: Recording, error: type[BaseException]) -> None:
    class Ends(Engine):
        def step(self, *_: Any, **__: Any) -> None:
            raise error

    Ends.step = steps.annotate(Ends.step, describe)  # type: ignore[method-assign]
    with pytest.raises(error):
        Ends().step()
    assert [step.flags for step in recording.steps] == [layout.FLAG_FAILED]


def test_errors_of_ours_are_counted_and_give_up_in_the_end(recording: Recording) -> None:
    calls = []

    def fails(*_: Any) -> Description:
        calls.append(1)
        raise ValueError("ours")

    engine = wrapped("step", fails)
    for _ in range(guard.GIVE_UP + 5):
        assert engine.step(1) == (1, None)
    assert len(calls) == guard.GIVE_UP
    assert [step.phase for step in recording.steps] == ["other"] * (guard.GIVE_UP + 5)
    count, text = guard.failures["describe"]
    assert count == guard.GIVE_UP and text.startswith("ValueError at test_steps.py:") and "ours" not in text
    (told,) = recording.runtime.process()["failures"]
    assert told == {"where": "describe", "count": 1, "error": text}


def test_a_description_that_does_not_fit_the_ring_costs_only_its_sizes(recording: Recording) -> None:
    assert wrapped("step", lambda *_: Description("decode", -1)).step(1) == (1, None)
    assert wrapped("step", lambda *_: Description("unheard of")).step(1) == (1, None)
    assert guard.failures["record"][0] == 2
    wrapped("step").step()
    assert [step.sums[:2] for step in recording.steps] == [("other", 0), ("other", 0), ("decode", 2)]


def test_the_label_of_an_open_window_reads_back(recording: Recording) -> None:
    recording.window = 3
    mixed = Description("mixed", 10, 4, 100, 400, 7, 1, 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        wrapped("step", lambda *_: mixed).step()
        wrapped("step").step()
    assert [step.window for step in recording.steps] == [3, 3]
    names = [event.name for event in profiler.events() if event.name.startswith("ta.step")]
    found = [labels.parse(name) for name in names]
    assert all(label is not None for label in found)
    first, second = found
    assert first is not None and second is not None
    assert (first.phase, first.tokens, first.prefill_tokens, first.decode_tokens) == ("mixed", 10, 7, 3)
    assert (first.sequences, first.prefill_sequences, first.decode_sequences) == (4, 1, 3)
    assert (first.context_sum, first.query_context_sum) == (100, 400)
    assert (second.phase, second.tokens, second.sequences, second.context_sum) == ("decode", 2, 2, 30)
    assert [name.split("n=")[1].split(" ")[0] for name in names] == ["0", "1"]


def test_a_label_is_left_when_the_step_fails(recording: Recording) -> None:
    recording.window = 1
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        with pytest.raises(KeyError):
            wrapped("fail").fail()
        with torch.profiler.record_function("after"):
            torch.ones(1)
    spans = {event.name: event.time_range for event in profiler.events()}
    (label,) = [span for name, span in spans.items() if name.startswith("ta.step")]
    assert label.end <= spans["after"].start


def test_a_traced_graph_holds_no_label(recording: Recording) -> None:
    recording.window = 1

    class Traced(torch.nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return value + 1

    Traced.forward = steps.annotate(Traced.forward, describe)  # type: ignore[method-assign]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        graph = torch.jit.trace(Traced(), torch.ones(1))
    assert "profiler" not in str(graph.graph)


def test_a_compiled_graph_holds_no_wrapper(recording: Recording) -> None:
    class Model(torch.nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return value + 1

    Model.forward = steps.annotate(Model.forward, describe)  # type: ignore[method-assign]
    compiled = torch.compile(Model(), backend="eager", fullgraph=True)
    assert compiled(torch.ones(1)).item() == 2
    assert recording.steps == []


def test_threads_measure_their_own_steps(recording: Recording) -> None:
    both = threading.Barrier(2, timeout=10)

    class Slow(Engine):
        def step(self, *_: Any, **__: Any) -> None:
            both.wait()

    Slow.step = steps.annotate(Slow.step, describe)  # type: ignore[method-assign]

    def work() -> None:
        for _ in range(50):
            Slow().step()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(recording.steps) == 100
    assert list(Counter(step.thread for step in recording.steps).values()) == [50, 50]


def test_threads_say_hello_at_once(recording: Recording) -> None:
    errors: list[OSError] = []

    def say(name: str) -> None:
        try:
            for count in range(50):
                runtime.process.hello(**{name: count})
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=say, args=(f"fact_{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hello = recording.runtime.process()
    assert errors == [] and [hello[f"fact_{index}"] for index in range(4)] == [49] * 4


def test_a_compiled_step_is_flagged(recording: Recording) -> None:
    wrapped("step", lambda *_: Compiled("decode")).step()
    assert [step.flags for step in recording.steps] == [layout.FLAG_COMPILED]


def test_coroutines_and_generators_are_measured_until_they_end(recording: Recording) -> None:
    async def waits(value: int) -> int:
        await asyncio.sleep(0.01)
        return value

    def gives(value: int) -> Any:
        yield value
        time.sleep(0.01)
        return value + 1

    recording.window = 1
    assert asyncio.run(steps.annotate(waits, describe)(4)) == 4
    generator = steps.annotate(gives, describe)(4)
    assert next(generator) == 4
    with pytest.raises(StopIteration) as end:
        next(generator)
    assert end.value.value == 5
    assert [step.duration_ns > 5_000_000 for step in recording.steps] == [True, True]
    assert [step.flags for step in recording.steps] == [0, 0]


def test_a_wrapped_function_looks_like_its_own(recording: Recording) -> None:
    def plain(first: int, second: int = 2) -> int:
        """Its text."""
        return first + second

    made = steps.annotate(plain, describe)
    assert (made(1), made(first=1, second=5)) == (3, 6)
    assert (made.__name__, made.__doc__, made.__wrapped__) == ("plain", "Its text.", plain)
    assert len(recording.steps) == 2


def test_the_wrapper_takes_arguments_of_any_name(recording: Recording) -> None:
    def plain(self: Any, **named: Any) -> Any:
        return named

    owner = type("Owner", (), {"call": steps.annotate(plain, describe)})
    given = {"args": 1, "kwargs": 2, "original": 3, "describe": 4, "place": 5, "call": 6}
    assert owner().call(**given) == given


def test_a_child_writes_a_ring_of_its_own(recording: Recording) -> None:
    engine = wrapped("step")
    engine.step()
    child = os.fork()
    if not child:
        try:
            steps.process.after_fork()
            steps.after_fork()
            engine.step()
            engine.step()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    rings = recording.runtime.rings()
    assert {pid: len(found) for pid, found in rings.items()} == {os.getpid(): 1, child: 2}
    assert {step.thread for step in rings[child]} == {child & 0xFFFF_FFFF}
    assert recording.runtime.processes()[child]["forked"] is True
