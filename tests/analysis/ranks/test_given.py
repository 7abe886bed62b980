"""Which files are ranks of one run: missing ones, copies, others of the same rank, and files that are no rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.ranks import made
from traceanalyzer.analysis.pipeline import analyze
from traceanalyzer.analysis.ranks import of_one_run
from traceanalyzer.errors import InputError, UnsupportedTraceError
from traceanalyzer.report import html
from traceanalyzer.report.build import build
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.trace.reading import read_traces
from traceanalyzer.trace.tables import Note, Trace

FOUR = Scenario(model="llama-3.2-1b", prompt=16, output=1, ranks=4)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return made.run(tmp_path_factory.mktemp("four"), FOUR)


def given(*paths: Path) -> tuple[list[int | None], list[Note]]:
    traces, notes = of_one_run(read_traces(list(paths)))
    return [trace.metadata.rank for trace in traces], notes


def test_all_ranks_need_no_note(files: list[Path]) -> None:
    assert given(*files) == ([0, 1, 2, 3], [])


@pytest.mark.parametrize(("there", "lacking"), [((0, 1, 3), "2"), ((1,), "0, 2, 3"), ((3, 0), "1, 2")])
def test_missing_ranks_are_named(files: list[Path], there: tuple[int, ...], lacking: str) -> None:
    ranks, notes = given(*(files[rank] for rank in there))
    assert ranks == list(there)
    assert notes == [Note("ranks_not_given", "warning", 4 - len(there), lacking)]


def test_a_long_list_of_missing_ranks_ends(files: list[Path]) -> None:
    def many(document: dict[str, dict[str, int]]) -> None:
        document["distributedInfo"]["world_size"] = 64

    _, (note,) = given(made.changed(files[1], many))
    assert (note.count, note.detail) == (63, "0, 2, 3, 4, 5, 6, 7, 8, ...")


def test_a_copy_of_a_rank_is_left_out(files: list[Path]) -> None:
    copy = files[1].with_name("copy.json")
    copy.write_bytes(files[1].read_bytes())
    ranks, notes = given(*files, copy)
    assert ranks == [0, 1, 2, 3]
    assert notes == [Note("rank_given_twice", "warning", 1, "copy.json")]


def without(*categories: str) -> Callable[[dict[str, Any]], None]:
    """Takes the events of some categories out, and all others too where none is named."""

    def change(document: dict[str, Any]) -> None:
        events = document["traceEvents"]
        document["traceEvents"] = [one for one in events if categories and one.get("cat") not in categories]

    return change


DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


@pytest.mark.parametrize("categories", [(), DEVICE], ids=["no event", "no kernel"])
def test_an_empty_rank_is_left_out_and_counts_as_given(files: list[Path], categories: tuple[str, ...]) -> None:
    empty = made.changed(files[2], without(*categories), "empty-rank2.json")
    assert given(files[0], files[1], empty, files[3]) == (
        [0, 1, 3], [Note("empty_rank_left_out", "warning", 1, "2")]
    )  # fmt: skip
    assert given(files[0], empty) == (
        [0], [Note("empty_rank_left_out", "warning", 1, "2"), Note("ranks_not_given", "warning", 2, "1, 3")]
    )  # fmt: skip


def test_ranks_that_are_all_empty_are_refused(files: list[Path]) -> None:
    empty = [made.changed(file, without(*DEVICE), f"empty-{file.name}") for file in files[:2]]
    with pytest.raises(UnsupportedTraceError, match=r"empty-run-rank0.json is a GPU run without its GPU records"):
        analyze(read_traces(empty))


def test_the_page_says_which_rank_is_left_out(files: list[Path]) -> None:
    empty = made.changed(files[1], without(), "empty-rank1.json")
    report = build(analyze(read_traces([files[0], empty, files[2], files[3]])))
    assert "1 rank (1) was left out, as nothing was recorded of what ran on the device" in html.render(report)
    assert [device.rank for device in report.devices] == [0, 2, 3]


def test_another_file_of_the_same_rank_is_refused(files: list[Path]) -> None:
    other = made.changed(files[1], made.moved(5.0))
    with pytest.raises(InputError, match=r"run-rank1.json and changed-run-rank1.json are both rank 1"):
        given(*files, other)


def test_ranks_of_other_runs_are_refused(files: list[Path]) -> None:
    def smaller(document: dict[str, dict[str, int]]) -> None:
        document["distributedInfo"]["world_size"] = 2

    with pytest.raises(InputError, match="different world sizes"):
        given(files[0], made.changed(files[1], smaller))


def test_a_front_end_without_a_gpu_is_left_out(files: list[Path], tmp_path: Path) -> None:
    """As vLLM leaves it beside its ranks, in a folder that is read whole."""
    for file in files:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    front = made.changed(files[0], made.front_end, "host_1.async_llm.1790000000.pt.trace.json")
    front.rename(tmp_path / front.name)
    ranks, notes = given(tmp_path)
    assert ranks == [0, 1, 2, 3]
    assert notes == [Note("front_end_left_out", "info", 1, front.name)]


def test_a_gpu_process_without_a_rank_is_no_front_end(files: list[Path]) -> None:
    with pytest.raises(InputError, match="does not say which rank"):
        given(*files[1:], made.changed(files[0], made.without_rank, "async_llm.json"))


def test_a_front_end_alone_is_read_as_it_is(files: list[Path]) -> None:
    ranks, notes = given(made.changed(files[0], made.front_end, "async_llm.json"))
    assert (ranks, notes) == ([None], [])


@pytest.mark.parametrize(
    "names",
    [
        ("dp0_pp0_tp0_dcp0_ep0_rank0.1790.pt.trace.json", "dp0_pp0_tp1_dcp0_ep1_rank1.1790.pt.trace.json"),
        ("1790-TP-0.trace.json", "1790-TP-1.trace.json"),
        ("rank0_trace.json", "rank1_trace.json"),
        ("trace-rank-0.json", "trace-rank-1.json"),
    ],
)
def test_ranks_that_no_trace_tells_are_in_the_names(files: list[Path], names: tuple[str, str]) -> None:
    first, second = (made.changed(file, made.without_rank, name) for file, name in zip(files, names, strict=False))
    assert given(second, first) == ([1, 0], [Note("ranks_from_names", "info", 2)])


def test_names_that_do_not_number_ranks_say_nothing(files: list[Path]) -> None:
    first, second = (made.changed(file, made.without_rank, f"frank{at}.json") for at, file in enumerate(files[:2]))
    with pytest.raises(InputError, match="does not say which rank"):
        given(first, second)


def test_what_traces_say_beats_names(files: list[Path]) -> None:
    first, second = (made.changed(file, lambda _: None, f"rank{9 - at}.json") for at, file in enumerate(files[:2]))
    ranks, _ = given(first, second)
    assert ranks == [0, 1]


def test_no_trace_is_an_error() -> None:
    nothing: list[Trace] = []
    with pytest.raises(InputError, match="no trace"):
        of_one_run(nothing)
