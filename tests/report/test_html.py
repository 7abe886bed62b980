"""The page as text: deterministic, self-contained, inert whatever the names are, and readable back."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from tests.report import factory
from traceanalyzer.errors import InputError
from traceanalyzer.report import html, markdown
from traceanalyzer.report.document import Report

ROOT = Path(__file__).resolve().parents[2]
ALL = sorted(factory.ALL)
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Every element of a page with its attributes, and the text outside style and script."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data

    def named(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def outside_the_document(page: str) -> str:
    """The page without the embedded JSON."""
    return re.sub(r"<script type=.*?</script>", "", page, flags=re.DOTALL)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: html.render(make()) for name, make in factory.ALL.items()}


@pytest.mark.parametrize("name", ALL)
def test_every_element_is_closed_and_every_id_is_the_only_one(pages: dict[str, str], name: str) -> None:
    page = Page(pages[name])
    assert page.open == []
    ids = [str(attributes["id"]) for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", ALL)
def test_every_anchor_leads_somewhere(pages: dict[str, str], name: str) -> None:
    page = Page(pages[name])
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    links = [str(attributes["href"]) for attributes in page.named("a")]
    assert len(links) > 20
    assert all(link.startswith("#") for link in links)
    assert {link[1:] for link in links} <= ids
    labels = {str(attributes["aria-labelledby"]) for _, attributes in page.elements if "aria-labelledby" in attributes}
    assert labels <= ids
    drawn = set(re.findall(r"url\(#([\w-]+)\)", pages[name]))
    assert drawn <= ids


@pytest.mark.parametrize("name", ALL)
def test_the_page_needs_nothing_but_its_own_style_and_script(pages: dict[str, str], name: str) -> None:
    page = Page(pages[name])
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"img", "iframe", "object", "embed", "link", "base", "form", "foreignobject"}
    assert not [attributes for _, attributes in page.elements if {"src", "style", "srcset", "action"} & set(attributes)]
    assert not [key for _, attributes in page.elements for key in attributes if key.startswith("on")]
    assert page.named("script") == [{"type": "application/json", "id": "traceanalyzer-report"}, {}]
    (style,) = re.findall(r"<style>(.*?)</style>", pages[name], flags=re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", outside_the_document(pages[name]), flags=re.DOTALL)
    assert script == (ROOT / "templates" / "report.js").read_text(encoding="utf-8")
    styled, scripted = (base64.b64encode(hashlib.sha256(own.encode()).digest()).decode() for own in (style, script))
    policy = page.named("meta")[1]
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert policy["content"] == (
        f"default-src 'none'; style-src 'sha256-{styled}'; script-src 'sha256-{scripted}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert not re.search(r"https?://", outside_the_document(pages[name])) or name == "hostile"


@pytest.mark.parametrize("name", ALL)
def test_tables_say_what_they_are(pages: dict[str, str], name: str) -> None:
    tables = re.findall(r"<table.*?</table>", pages[name], flags=re.DOTALL)
    assert tables or name == "empty"
    for table in tables:
        assert table.count("<caption") == 1
        assert "<th>" not in table
        assert not re.search(r"<th (?!scope)", table)
    regions = [attributes for attributes in Page(pages[name]).named("div") if attributes.get("class") == "scroll"]
    assert len(regions) >= len(tables)
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in regions)


@pytest.mark.parametrize("name", ALL)
def test_headings_come_in_order_and_landmarks_are_named(pages: dict[str, str], name: str) -> None:
    page = Page(pages[name])
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    tags = [tag for tag, _ in page.elements]
    assert (tags.count("main"), tags.count("nav"), tags.count("header"), tags.count("footer")) == (1, 1, 1, 1)
    assert all({"aria-labelledby", "aria-label"} & set(section) for section in page.named("section"))
    labelled = {label["for"] for label in page.named("label")}
    assert labelled == {field["id"] for field in page.named("input")}
    assert all({"aria-label", "aria-hidden"} & set(drawing) for drawing in page.named("svg"))


def test_the_markdown_stands_in_the_page_once(pages: dict[str, str]) -> None:
    (kept,) = re.findall(r'<pre class="all" id="markdown-text">(.*?)</pre>', pages["hostile"], flags=re.DOTALL)
    assert "<" not in kept
    assert unescape(kept) == markdown.render(factory.hostile()).rstrip("\n")


def test_hostile_names_show_as_text(pages: dict[str, str]) -> None:
    source = pages["hostile"]
    shown = Page(source).text
    assert "</script><script>document.title='PWNED'</script>" in shown
    assert '"><img src=x onerror="document.title=\'PWNED\'">' in shown
    assert "<built-in function len>" in shown
    assert "right\u27eaU+202E\u27ebto left" in shown
    assert "{{ 7*7 }} {% raw %} &amp;" in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]", source)
    assert max(len(word) for word in outside_the_document(source).split()) < 6000


@pytest.mark.parametrize("name", ALL)
def test_the_embedded_document_is_the_report_and_inert(pages: dict[str, str], name: str) -> None:
    (block,) = re.findall(r'<script type="application/json" id="traceanalyzer-report">(.*?)</script>', pages[name])
    assert block.isascii()
    assert not set("<>&") & set(block)
    made = factory.ALL[name]()
    assert html.from_html(pages[name]).to_json() == made.to_json()
    assert name == "hostile" or html.from_html(pages[name]) == made
    assert json.loads(block)["report_id"] == made.report_id


@pytest.mark.parametrize(
    "page",
    ["", "<!doctype html><title>A diary</title>", '<script type="application/json" id="traceanalyzer-report">{"a":',
     '<script type="application/json" id="traceanalyzer-report">{</script>',
     '<script type="application/json" id="traceanalyzer-report">[]</script>',
     '<script type="application/json" id="traceanalyzer-report">{"schema_version":99}</script>',
     '<script type="application/json" id="traceanalyzer-report">{"schema_version":"' + "9" * 5000 + '"}</script>',
     '<script type="application/json" id="traceanalyzer-report">{"schema_version":1}</script>',
     '<script type="application/json" id="traceanalyzer-report">' + "[" * 200_000 + "</script>"],
)  # fmt: skip
def test_a_page_that_is_no_report_is_an_input_error(page: str) -> None:
    with pytest.raises(InputError) as caught:
        html.from_html(page)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_the_largest_report_is_under_two_megabytes(pages: dict[str, str]) -> None:
    """2000 steps and 500 kernels; strip and roofline stay bounded."""
    assert len(pages["maximal"].encode()) < 2_000_000
    assert pages["maximal"].count("<rect") < 1_300
    assert "100 of 500 kernels" in pages["maximal"].replace("kernel rows", "kernels")


@pytest.mark.parametrize("seed", ["0", "4711"])
def test_the_same_report_is_the_same_page_in_any_process(pages: dict[str, str], seed: str) -> None:
    code = "import sys\nfrom tests.report import factory\nfrom traceanalyzer.report import html\n" \
           "sys.stdout.buffer.write(html.render(factory.gpu_generation()).encode())"  # fmt: skip
    environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)
    assert run.stdout.decode() == pages["gpu"]


def test_a_report_read_back_makes_the_same_page(pages: dict[str, str]) -> None:
    assert html.render(html.from_html(pages["gpu"])) == pages["gpu"]


def test_what_is_not_known_is_left_out_or_said(pages: dict[str, str]) -> None:
    shown = " ".join(Page(pages["empty"]).text.split())
    for title in ("Speed", "Busy is not the same", "Ruled out", "Cost", "What to do first"):
        assert title not in shown
    assert "No phase was recognised in this trace." in shown
    assert "0 %" not in shown
    assert "None" not in shown
    assert not re.search(r"\bnan\b", shown, flags=re.IGNORECASE)
    cpu = " ".join(Page(pages["cpu"]).text.split())
    cpu = cpu[: cpu.index("Appendix", 500)]  # the Markdown in the appendix repeats the first screen
    assert cpu.count("--peak-tflops") == 1
    assert "Supply them from its data sheet: traceanalyzer report TRACE --bandwidth-gbs N --peak-tflops fp32=N" in cpu
    assert "--peak-tflops" not in Page(pages["gpu"]).text


def test_the_first_screen_comes_in_order(pages: dict[str, str]) -> None:
    shown = " ".join(Page(pages["gpu"]).text.split())
    parts = ("Llama-3-8B", "Decode is bound by the host", "More compute does not help", "1 warning, 1 note",
             "Profiling made a step 12 % slower", "49.0 tokens/s", "GPU-Util", "Memory bandwidth used",
             "Tensor cores useful", "Share of time", "One decode step against its floor", "What to do first",
             "Replay decode from a graph", "then 11.3 ms a step, 88.5 tokens/s", "confidence 80 %", "Ruled out", "Cost",
             "Findings", "Prefill against decode", "Where the time went", "Steps in time", "Roofline", "What if",
             "Memory", "Kernels by wasted time", "Data quality", "Appendix")  # fmt: skip
    places = []
    for part in parts:
        places.append(shown.find(part, places[-1] if places else 0))
    assert -1 not in places


def test_a_figure_above_the_limit_says_so(pages: dict[str, str]) -> None:
    assert "above the sheet limit" in pages["hostile"]
    assert "above the sheet limit" not in pages["gpu"]


def test_rendering_does_not_change_the_report() -> None:
    made: Report = factory.gpu_generation()
    before = made.to_json()
    html.render(made)
    assert made.to_json() == before
