"""The Markdown and the terminal text: what the first screen says, short, and harmless whatever the names are."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from tests.report import factory
from traceanalyzer.report import document as doc
from traceanalyzer.report import markdown, text

ALL = sorted(factory.ALL)
IN_ORDER = (
    "generation, eager", "Decode is bound by the host", "More compute does not help", "1 warning, 1 note",
    "12 % slower", "49.0 tokens/s", "56 %", "Prefill", "7.40 ms is the least", "Replay decode from a graph",
    "Faster links do not help", "14.2 USD",
)  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_markdown_is_at_most_sixty_lines(name: str) -> None:
    assert len(markdown.render(factory.ALL[name]()).splitlines()) <= 60


def test_markdown_stays_short_with_every_phase_and_many_notes() -> None:
    phases = [factory.phase(name) for name in ("prefill", "decode", "mixed", "draft", "encoder", "capture", "warmup")]
    notes = [doc.QualityNote(code=f"c{i}", severity="error", message=f"Loss {i}.", count=i) for i in range(40)]
    lines = markdown.render(factory.maximal().model_copy(update={"phases": phases, "quality": notes})).splitlines()
    assert len(lines) <= 60
    assert "- 37 more in the page" in lines


@pytest.mark.parametrize("name", ALL)
def test_markdown_tables_are_tables(name: str) -> None:
    source = markdown.render(factory.ALL[name]())
    tokens = MarkdownIt("commonmark").enable("table").parse(source)
    written = re.findall(r"^\| -", source, flags=re.MULTILINE)
    assert len([token for token in tokens if token.type == "table_open"]) == len(written)
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in source.splitlines() if line.startswith("|")}
    assert not widths or min(widths) >= 2


def test_hostile_names_are_only_text_in_markdown() -> None:
    source = markdown.render(factory.hostile())
    tokens = MarkdownIt("commonmark").enable("table").parse(source)
    inline = [child for token in tokens for child in token.children or []]
    assert not {token.type for token in [*tokens, *inline]} & {"html_block", "html_inline", "link_open", "image"}
    prose = re.sub(r"`[^`]*`", "", source)
    assert "@" not in prose
    assert "://" not in prose
    assert source.isprintable() or set(re.sub(r"[^\x00-\x1f\x7f\u2028\u2029\u202e]", "", source)) == {"\n"}


@pytest.mark.parametrize(
    ("value", "escaped"),
    [("a|b", "a\\|b"), ("49.0 ms", "49.0 ms"), ("1. item", "1\\. item"), ("- item", "\\- item"),
     ("*b* _i_ `c`", "\\*b\\* \\_i\\_ \\`c\\`"), ("@me", "\uff20me"), ("a-b", "a-b"), ("#12", "\\#12")],
)  # fmt: skip
def test_plain_text(value: str, escaped: str) -> None:
    assert markdown.plain(value) == escaped


def test_names_are_code_spans_that_cannot_be_left() -> None:
    assert markdown.code("NVIDIA A100-SXM4-80GB") == "NVIDIA A100-SXM4-80GB"
    assert markdown.code("void k<int>(a)") == "`void k<int>(a)`"
    assert markdown.code("x`|`y").count("`") == 2
    assert "|" not in markdown.code("x`|`y")


@pytest.mark.parametrize("render", [markdown.render, text.render], ids=["markdown", "terminal"])
def test_the_same_lines_in_the_same_order(render: Callable[[doc.Report], str]) -> None:
    said = " ".join(render(factory.gpu_generation()).split())
    places = [said.find(part) for part in IN_ORDER]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("name", ALL)
def test_terminal_text_has_no_escape_sequence_and_fits(name: str) -> None:
    printed = text.render(factory.ALL[name](), width=100)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", printed)
    assert max(len(line) for line in printed.splitlines()) <= 100
    assert "PWNED" not in printed or name == "hostile"


def test_mark_up_in_names_is_no_mark_up() -> None:
    report = factory.gpu_generation(
        verdict=doc.Verdict(headline="[bold red]x[/] :smile:", bound="host", confidence=None, ruled_out=[])
    )
    assert "[bold red]x[/] :smile:" in text.render(report)


def test_colour_only_where_the_console_has_it() -> None:
    plain, coloured = io.StringIO(), io.StringIO()
    text.show(factory.gpu_generation(), Console(file=plain, width=80))
    text.show(factory.gpu_generation(), Console(file=coloured, width=80, force_terminal=True, color_system="standard"))
    assert "\x1b[" not in plain.getvalue()
    assert "\x1b[" in coloured.getvalue()


def test_the_environment_does_not_change_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = text.render(factory.gpu_generation())
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "40"), ("TERM", "dumb"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    assert text.render(factory.gpu_generation()) == usual


def test_tables_align_words_to_the_left_and_figures_to_the_right() -> None:
    words = {"Phase", "Bound by", "Bound", "Kernel", "Finding", "Where the time went"}
    seen = set()
    for name in ALL:
        tables = re.findall(r"^(\| .*\|)\n(\| -.*\|)$", markdown.render(factory.ALL[name]()), re.MULTILINE)
        for table in tables:
            heads, rules = ([cell.strip() for cell in line.strip("|").split("|")] for line in table)
            assert {head for head, rule in zip(heads, rules, strict=True) if rule == "---"} == words & set(heads)
            seen |= words & set(heads)
    assert seen == words - {"Finding"}


def test_a_ticket_holds_what_to_do_and_the_evidence_once() -> None:
    more = [factory.finding(f"more-{at}", f"More {at}", "found", phase="decode", saving_us_per_step=1.0,
                            saving_share_of_span=1e-5, action="Do.") for at in range(3)]  # fmt: skip
    source = markdown.render(factory.gpu_generation(findings=[*factory.FINDINGS, *more]))
    assert "2. **Replay decode from a graph** (saves 9.06 ms of a decode step (44 %); then 11.3 ms a step, 88.5 " \
           "tokens/s; confidence 80 %): Use a static KV cache" in source  # fmt: skip
    assert source.count("Replay decode from a graph") == 1
    assert "| More 2 | Decode | 1.00 \u00b5s | unknown | unknown | unknown |" in source
    assert "Passed: 1. Not applicable: 2. Could not be judged: 1." in source
