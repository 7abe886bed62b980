"""The table of traces: adding once, paging while rows arrive, searching by an index; and checked labels."""

from __future__ import annotations

import hashlib
import math
import random
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from traceanalyzer.errors import InputError
from traceanalyzer.server.labels import Labels
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Settings
from traceanalyzer.server.traces import Found, Search, TraceRow, Traces

NOW = 1_800_000_000_000


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    opened = Services.open(Settings(folder=tmp_path))
    yield opened
    opened.close()


@pytest.fixture
def traces(services: Services) -> Traces:
    return services.traces


def sha(number: object) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def names(traces: Traces, **search: Any) -> list[str]:
    return [row.name for row in traces.find(Search(**search)).rows]


def test_a_trace_is_added_with_its_job_in_one_step(services: Services) -> None:
    labels = Labels(name="a.json.gz", model="m", engine="vllm", host="h", revision="r", environment="prod",
                    recording="rec", weight_s=1.5, pinned=True)  # fmt: skip
    assert services.traces.add(sha(1), 10, 200, labels, "0123456789ab", NOW, redaction="strict")
    row = services.traces.get(sha(1))
    assert row is not None
    assert (row.bytes, row.text_bytes, row.uploaded_at, row.uploaded_by) == (10, 200, NOW, "0123456789ab")
    assert (row.state, row.redaction, row.pinned, row.weight_s) == ("queued", "strict", True, 1.5)
    assert Labels(**{field.name: getattr(row, field.name) for field in fields(Labels)}) == labels
    (job,) = services.jobs.of(sha(1))
    assert (job.reason, job.state, job.attempts, job.not_before) == ("upload", "queued", 0, NOW)


def test_twenty_threads_that_send_one_trace_make_one_row_and_one_job(services: Services) -> None:
    start = threading.Barrier(20)
    new: list[bool] = []

    def add(number: int) -> None:
        start.wait()
        new.append(services.traces.add(sha(1), 10, 20, Labels(host=f"h{number}"), None, NOW + number))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(new) == [False] * 19 + [True]
    assert services.traces.find(Search()).total == 1
    assert len(services.jobs.of(sha(1))) == 1


def test_sending_it_again_changes_only_the_labels_that_are_given(services: Services) -> None:
    services.traces.add(sha(1), 10, 20, Labels(name="first", model="m", pinned=True), "0123456789ab", NOW)
    assert not services.traces.add(sha(1), 10, 20, Labels(engine="vllm"), "ba9876543210", NOW + 5)
    row = services.traces.get(sha(1))
    assert row is not None
    assert (row.name, row.model, row.engine, row.pinned) == ("first", "m", "vllm", True)
    assert (row.uploaded_at, row.uploaded_by) == (NOW, "0123456789ab")
    services.traces.add(sha(1), 10, 20, Labels(pinned=False), "ba9876543210", NOW + 6)
    assert services.traces.get(sha(1)).pinned, "letting it be deleted is not for who sends traces"  # type: ignore[union-attr]
    assert names(services.traces, text="vllm") == ["first"]
    assert len(services.jobs.of(sha(1))) == 1


def test_nothing_is_added_where_the_job_cannot_be(services: Services) -> None:
    with services.database.session() as session:
        session.execute(text("DROP TABLE jobs"))
    with pytest.raises(Exception, match="jobs"):
        services.traces.add(sha(1), 10, 20, Labels(), None, NOW)
    assert services.traces.get(sha(1)) is None


def test_pages_show_every_row_once_while_rows_come_and_go(traces: Traces) -> None:
    draw = random.Random(5)
    # Many share a millisecond, so that the order among them counts.
    before = {sha(n): NOW + draw.randrange(20) for n in range(230)}
    for name, at in before.items():
        traces.add(name, 1, 1, Labels(), None, at)
    gone: set[str] = set()
    seen: list[tuple[int, str]] = []
    token: str | None = None
    for round_ in range(100):
        page = traces.find(Search(), token, size=17)
        seen += [(row.uploaded_at, row.sha256) for row in page.rows]
        if page.next is None:
            break
        token = page.next
        traces.add(sha(f"later {round_}"), 1, 1, Labels(), None, NOW + 1000 + round_)
        # The clock was set back: these land among the rows that are still to come, and may show up there.
        traces.add(sha(f"earlier {round_}"), 1, 1, Labels(), None, NOW - 1)
        # The row that the page ended with goes: its key still says where to go on.
        traces.delete(page.rows[-1].sha256)
        gone.add(page.rows[-1].sha256)
    assert seen == sorted(seen, reverse=True)
    shown = [name for _, name in seen]
    assert len(shown) == len(set(shown))
    assert set(before) <= set(shown)
    assert len(gone) >= 230 // 17


def test_a_page_holds_what_was_asked_for_and_the_last_one_says_so(traces: Traces) -> None:
    for number in range(10):
        traces.add(sha(number), 1, 1, Labels(name=str(number)), None, NOW + number)
    first = traces.find(Search(), size=4)
    second = traces.find(Search(), first.next, size=4)
    third = traces.find(Search(), second.next, size=4)
    assert [row.name for page in (first, second, third) for row in page.rows] == list("9876543210")
    assert (first.total, second.total, third.total, third.next) == (10, 10, 10, None)
    exact = traces.find(Search(), size=10)
    assert (len(exact.rows), exact.next, exact.total) == (10, None, 10)
    assert len(traces.find(Search(), size=0).rows) == 1
    assert len(traces.find(Search(), size=-5).rows) == 1


@pytest.mark.parametrize(
    "page", ["", "x", "%%%", "A" * 10_000, "MTIz", "ä", "\0", "-1", "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTo" + "A" * 86]
)
def test_a_page_that_we_did_not_name_is_refused(traces: Traces, page: str) -> None:
    with pytest.raises(InputError, match="page"):
        traces.find(Search(), page)


def test_filters_and_text(traces: Traces) -> None:
    traces.add(sha("a"), 1, 1, Labels(name="a", model="Llama 3", engine="vllm", environment="prod", host="h1"), None, 1)
    traces.add(sha("b"), 1, 1, Labels(name="b", model="Qwen_3", engine="sglang", recording="r1"), None, 2)
    traces.add(sha("c"), 1, 1, Labels(name="c", model="Größe", engine="vllm", environment="test"), None, 3)
    traces.set_analysed(sha("a"), Found(gpu="H100", bound="memory", headline="waits for the CPU 23 % of it"), 9)
    traces.set_failed(sha("b"), "no kernel in it")
    assert names(traces) == ["c", "b", "a"]
    assert names(traces, engine="vllm") == ["c", "a"]
    assert names(traces, engine="vllm", environment="prod") == ["a"]
    assert names(traces, engine="vLLM", model="llama 3") == names(traces, gpu="h100") == ["a"]
    assert names(traces, environment="Prod") == names(traces, host="H1") == []
    assert names(traces, gpu="H100", bound="memory") == ["a"]
    assert names(traces, state="failed") == names(traces, recording="r1") == ["b"]
    assert names(traces, state="queued") == ["c"]
    assert names(traces, host="h") == []
    assert names(traces, since_ms=2) == ["c", "b"]
    assert names(traces, since_ms=2, until_ms=3) == ["b"]
    assert names(traces, text="LLAMA vllm") == ["a"]
    assert names(traces, text="llama sglang") == []
    assert names(traces, text="gRÖSSE") == ["c"]
    assert names(traces, text="23 %") == ["a"]
    # What LIKE would take as "anything" is meant as it is written.
    assert names(traces, text="%") == ["a"]
    assert names(traces, text="qwen_") == ["b"]
    assert names(traces, text="llama_") == names(traces, text="/") == names(traces, text="\\") == []
    assert names(traces, text=sha("c")[:8]) == names(traces, text=sha("c")) == ["c"]
    assert names(traces, text="'; DROP TABLE traces; --") == []
    assert names(traces, text="  ") == ["c", "b", "a"]
    assert names(traces, text="x" * 100_000) == []


def test_a_list_page_reads_the_wide_index_and_then_its_rows(services: Services) -> None:
    for number in range(300):
        labels = Labels(name=str(number), model=f"m{number % 3}", engine="vllm", environment="prod")
        services.traces.add(sha(number), 1, 1, labels, None, NOW + number)
    asked: list[tuple[str, Any]] = []
    event.listen(
        services.database.engine, "before_cursor_execute", lambda _c, _u, sql, values, *_: asked.append((sql, values))
    )
    services.traces.find(Search(text="nothing", model="m1", engine="vllm", environment="prod", state="queued"), size=5)
    services.traces.find(Search(bound="memory", gpu="H100", text="two words"), size=5)
    services.traces.find(Search(), size=5)
    plans = []
    with services.database.engine.connect() as connection:
        for sql, values in [each for each in asked if "FROM traces" in each[0]]:
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all()
            plans.append(" ".join(str(row[3]) for row in rows))
    assert len(plans) == 7  # names and rows each; of the last one, which asks for no text, the number too
    for plan in plans:
        by_name = "sqlite_autoindex_traces_1" in plan
        assert by_name or "COVERING INDEX" in plan, plan
        # Names come in the order of the index; only the rows of one page are sorted.
        assert by_name or "TEMP B-TREE" not in plan, plan


def test_more_than_ten_thousand_are_not_counted(services: Services) -> None:
    with services.database.session() as session:
        session.execute(
            TraceRow.__table__.insert(),
            [
                {"sha256": sha(n), "bytes": 2, "text_bytes": 1, "name": "x", "uploaded_at": n, "state": "queued",
                 "pinned": False, "words": "x", "model": "one" if n < 10_000 else "other"}
                for n in range(10_001)
            ],
        )  # fmt: skip
    assert services.traces.find(Search()).total is None
    assert services.traces.find(Search(model="one")).total == 10_000
    assert services.traces.find(Search(model="other")).total == 1
    assert services.traces.counts() == {"queued": 10_001, "running": 0, "analysed": 0, "failed": 0}
    assert services.traces.stored_bytes() == 20_002


def test_what_an_analysis_found_is_kept_and_can_be_shown(services: Services) -> None:
    traces = services.traces
    traces.add(sha(1), 10, 20, Labels(model="said"), None, NOW, redaction="default")
    found = Found(gpu="H100\x1b[31m", headline="x" * 10_000, tokens_per_s=12.5, analyser="1", report_bytes=7)
    assert traces.set_analysed(sha(1), found, NOW + 1, Labels(model="read", engine="vllm", name="read", pinned=True))
    row = traces.get(sha(1))
    assert row is not None
    assert row.gpu is not None
    assert row.gpu.isprintable()
    assert row.headline is not None
    assert len(row.headline) <= 500
    assert (row.tokens_per_s, row.bound, row.state, row.analysed_at) == (12.5, None, "analysed", NOW + 1)
    # What a person said counts more than what a file says of itself; pinning and naming are for people.
    assert (row.model, row.engine, row.pinned, row.redaction) == ("said", "vllm", False, "default")
    assert row.name != "read"
    assert traces.stored_bytes() == 17
    assert names(traces, text="h100") == [row.name]
    assert not traces.set_analysed(sha(2), found, NOW)


def test_a_failure_is_one_line_and_takes_no_report_away(services: Services) -> None:
    traces = services.traces
    traces.add(sha(1), 10, 20, Labels(), None, NOW)
    assert traces.set_failed(sha(1), "first\nsecond")
    row = traces.get(sha(1))
    assert row is not None
    assert row.error is not None
    assert (row.state, "\n" in row.error) == ("failed", False)
    traces.set_analysed(sha(1), Found(), NOW)
    row = traces.get(sha(1))
    assert row is not None
    assert (row.state, row.error) == ("analysed", None)
    assert not traces.set_failed(sha(1), "again")
    row = traces.get(sha(1))
    assert row is not None
    assert row.state == "analysed"


def test_deleting_and_pinning(services: Services) -> None:
    traces = services.traces
    for number in range(4):
        traces.add(sha(number), 1, 1, Labels(environment="prod" if number else None), None, NOW + number)
    assert traces.pin(sha(1), True)
    assert not traces.pin(sha(9), True)
    assert [row.sha256 for row in traces.oldest(10)] == [sha(0), sha(2), sha(3)]
    assert [row.sha256 for row in traces.oldest(10, before_ms=NOW + 3)] == [sha(0), sha(2)]
    assert [row.sha256 for row in traces.oldest(1, environment="prod")] == [sha(2)]
    assert [row.sha256 for row in traces.oldest(10, but=["prod"])] == [sha(0)]
    assert traces.delete(sha(0))
    assert not traces.delete(sha(0))
    assert services.jobs.of(sha(0)) == []


UNSEEN = [
    "a\0b",
    "a\nb",
    "a\x1bb",
    "a\x7fb",
    "a\u202eb",
    "a\u2066b",
    "a\u200bb",
    "\ufeffa",
    "a\u2028b",
    "a\ud800b",
    "a\U000e0041b",
]


@pytest.mark.parametrize("label", ["name", "model", "engine", "host", "revision", "environment", "recording"])
@pytest.mark.parametrize("value", [*UNSEEN, "x" * 201, "x" * 10_000_000, "e\u0301" * 201])
def test_a_label_that_cannot_be_seen_or_is_too_long_is_refused(label: str, value: str) -> None:
    with pytest.raises(InputError, match=label) as caught:
        Labels.checked(**{label: value})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "name", ["..", ".", "/", "a/b", "../../etc/passwd", "/etc/passwd", "a\\b", "C:\\x", "..\\x", "\\\\host\\share"]
)
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(InputError, match="base name"):
        Labels.checked(name=name)


@pytest.mark.parametrize(
    "weight", ["nan", "NaN", "inf", "-inf", "-1", "1e11", "x", "1,5", "0x10", math.nan, math.inf, -0.5, "9" * 5000]
)
def test_a_weight_is_a_number_of_seconds(weight: Any) -> None:
    with pytest.raises(InputError, match="weight_s"):
        Labels.checked(weight_s=weight)


@pytest.mark.parametrize("pinned", ["maybe", "2", "yes no", "\u0661"])
def test_pinned_is_yes_or_no(pinned: str) -> None:
    with pytest.raises(InputError, match="pinned"):
        Labels.checked(pinned=pinned)


def test_good_labels_are_normalised() -> None:
    labels = Labels.checked(name=" run (1).pt.trace.json.gz ", model="meta-llama/Llama-3.1-8B", host="", weight_s="1.5",
                            pinned="True", revision="<script>alert(1)</script>", engine="e\u0301")  # fmt: skip
    assert labels == Labels(name="run (1).pt.trace.json.gz", model="meta-llama/Llama-3.1-8B", weight_s=1.5, pinned=True,
                            revision="<script>alert(1)</script>", engine="\u00e9")  # fmt: skip
    assert Labels.checked(weight_s="", pinned="", name="  ") == Labels()
    assert Labels.checked(model="模型\u3000一").model == "模型\u3000一"
    assert Labels.checked(model="x" * 200).model == "x" * 200
    assert Labels.checked(weight_s=0, pinned=False) == Labels(weight_s=0.0, pinned=False)
