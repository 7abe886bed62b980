"""What redaction says of itself in the report; texts that are made to be slow."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.report import factory
from tests.share.test_redact import everywhere, write
from traceanalyzer import analyze, read_trace, render
from traceanalyzer.report import document as doc
from traceanalyzer.report.html import from_html
from traceanalyzer.share.redact import LEVELS, Level, preview, redact_file

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "tiny-llama-cpu.json.gz"


def report(*files: Path) -> doc.Report:
    return analyze([read_trace(file) for file in files])


def in_words(page: str) -> str:
    return page.replace("\N{NO-BREAK SPACE}", " ").replace("\\", "").replace("\n", " ")


@pytest.fixture(scope="module")
def before() -> doc.Report:
    return report(SAMPLE)


@pytest.fixture(scope="module", params=LEVELS)
def redacted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Level, Any, doc.Report]:
    """A level, what redacting the sample at it gave, and the report on that."""
    target = tmp_path_factory.mktemp("redacted") / "out.json.gz"
    done = redact_file(SAMPLE, target, request.param)
    return request.param, done, report(target)


@pytest.mark.parametrize("format", ["html", "markdown", "text"])
def test_every_rendering_says_what_was_done(
    before: doc.Report, redacted: tuple[Level, Any, doc.Report], format: Any
) -> None:
    level, done, after = redacted
    assert before.redaction is None
    assert after.redaction is not None
    assert (after.redaction.level, after.redaction.files) == (level, 1)
    assert after.redaction.counts == dict(done.counts)
    said = {
        "none": "Shared without redaction",
        "default": f"Redacted before it was shared: {done.counts.get('hosts', 0) or ''}".rstrip(),
        "strict": "Redacted strictly before it was shared: ",
    }
    page = in_words(render(after, format))
    assert said[level] in page
    assert "edact" not in in_words(render(before, format)).split("traceanalyzer-report")[0]


def test_files_of_several_levels_are_as_good_as_the_least(tmp_path: Path) -> None:
    document = factory.report(
        traces=[factory.trace("a"), factory.trace("b")],
        redaction=doc.Redaction(level="default", files=1, counts={"hosts": 1, "paths": 1234, "annotations": 2}),
    )
    page = in_words(render(document, "text"))
    assert "1 of 2 files were redacted before they were shared: 1 host name, 1,234 paths, 2 annotations." in page
    assert from_html(render(document, "html")) == document
    counts = []
    for rank, level in enumerate(LEVELS[1:]):
        trace = everywhere("x") | {"distributedInfo": {"rank": rank, "world_size": 2}}
        counts.append(redact_file(write(tmp_path, trace), tmp_path / f"{rank}.json.gz", level).counts)
    both = report(tmp_path / "0.json.gz", tmp_path / "1.json.gz").redaction
    assert both is not None
    assert (both.level, both.files) == ("default", 2)
    assert both.counts["metadata"] == sum(count["metadata"] for count in counts)


def test_a_file_cannot_put_words_or_numbers_of_its_own_there(tmp_path: Path) -> None:
    forged = {"level": "default<b>", "hosts": "many", "paths": -5, "noted": ["made_up 3", 7, "truncated_json 2 x y"]}
    trace = json.loads(json.dumps(everywhere("x")))
    trace["traceanalyzer"]["redaction"] = forged
    assert report(write(tmp_path, trace)).redaction is None
    forged["level"] = "default"
    trace["traceanalyzer"]["redaction"] = forged
    result = report(write(tmp_path, trace))
    assert result.redaction == doc.Redaction(level="default", files=1, counts={})
    assert not {"made_up", "truncated_json"} & {note.code for note in result.quality}


HOSTILE = {
    "slashes": "/" * 200_000,
    "backslashes": "C:" + "\\" * 200_000,
    "digits": "1" * 200_000 + "x",
    "dots": "1." * 100_000,
    "colons": "a:" * 100_000,
    "ats": "a@" * 100_000,
    "letters": "a" * 200_000,
    "almost tokens": "ghp_ eyJ sk- key= token: -----BEGIN A-----" * 4_000,
    "brackets": "f" + "<(" * 100_000,
    "homes": "/home/" * 33_000,
    "spaces": " " * 200_000,
    "labels": "step[" + "a=1 " * 50_000,
    "words": "decode_" * 28_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_text_that_is_made_to_be_slow_is_not(tmp_path: Path, kind: str) -> None:
    source = write(tmp_path, everywhere(HOSTILE[kind]))
    began = time.process_time()
    preview(source)
    assert time.process_time() - began < 10
