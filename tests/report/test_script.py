"""The page's script in Chromium: it sorts, filters, copies and unfolds; without it, and on paper, the page is whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.report import factory
from tests.report.browsing import Visit
from traceanalyzer.report import html, markdown

REPORTS = ("gpu", "maximal", "hostile")
COUNTS = "[...document.querySelectorAll('#kernel-table tbody tr')].map(r => r.cells[3].innerText)"
NAMES = "[...document.querySelectorAll('#kernel-table tbody tr')].filter(r => r.checkVisibility())" \
        ".map(r => r.cells[0].querySelector('code').textContent)"  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name in REPORTS:
        (folder / f"{name}.html").write_text(html.render(factory.ALL[name]()), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in REPORTS}


def heads(page: Any) -> dict[str, str]:
    """What the heads of the kernel table say about the order."""
    return dict(page.evaluate(
        "[...document.querySelectorAll('#kernel-table th[aria-sort]')].map(h => [h.innerText, h.ariaSort])"
    ))  # fmt: skip


def test_tables_sort_by_any_head_with_the_mouse_and_the_keyboard(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["gpu"]) as visit:
        button = visit.page.get_by_role("button", name="Count")
        button.click()
        counts = visit.page.evaluate(COUNTS)
        assert counts == ["28,448", "16,256", "8,255", "4,064", "225", "127", "23,000", "900"]  # the rest stays last
        assert heads(visit.page) == {"Count": "descending"}
        visit.page.keyboard.press("Enter")
        assert heads(visit.page) == {"Count": "ascending"}
        counts = visit.page.evaluate(COUNTS)
        assert counts == ["127", "225", "4,064", "8,255", "16,256", "28,448", "900", "23,000"]
        visit.page.get_by_role("button", name="Kernel", exact=True).click()
        assert heads(visit.page) == {"Kernel": "ascending"}
        names = visit.page.evaluate(NAMES)[:6]
        assert names == sorted(names, key=str.lower)
        assert visit.complaints == []


def test_what_is_not_known_sorts_last_either_way(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["gpu"]) as visit:
        for _ in range(2):
            visit.page.get_by_role("button", name="Wasted").click()
            assert visit.page.evaluate(NAMES)[5].startswith("void some_vendor")


def test_sorting_keeps_twenty_rows_and_folds_the_others(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["maximal"]) as visit:
        before = visit.page.evaluate(NAMES)
        visit.page.get_by_role("button", name="Total").click()
        visit.page.get_by_role("button", name="Total").click()
        after = visit.page.evaluate(NAMES)
        assert (len(before), len(after)) == (20, 20)
        assert not set(before) & set(after)
        visit.page.get_by_label("Show all 100 rows").check()
        assert len(visit.page.evaluate(NAMES)) == 100


def test_the_filter_finds_folded_rows_and_says_how_many(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["maximal"]) as visit:
        field = visit.page.get_by_label("Filter by name, kind or phase")
        field.fill("MIXED attention")
        shown = visit.page.evaluate(NAMES)
        assert len(shown) == 25  # a quarter of the hundred longest
        assert visit.page.inner_text("#kernel-filtered") == "25 of 100 rows"
        assert visit.page.get_attribute("#kernel-filtered", "role") == "status"
        field.fill("no kernel is called this")
        assert visit.page.evaluate(NAMES) == []
        assert visit.page.inner_text("#kernel-filtered") == "0 of 100 rows"
        field.fill("")
        assert len(visit.page.evaluate(NAMES)) == 20
        assert visit.page.inner_text("#kernel-filtered") == ""


@pytest.mark.parametrize("name", ["gpu", "hostile"])
def test_the_markdown_goes_to_the_clipboard(browser: Any, files: dict[str, Path], name: str) -> None:
    with Visit(browser, files[name], permissions=["clipboard-read", "clipboard-write"]) as visit:
        visit.page.get_by_role("button", name="Copy as Markdown").click()
        visit.page.get_by_role("button", name="Copied").wait_for()
        assert visit.page.inner_text("#said") == "Copied"
        copied = visit.page.evaluate("navigator.clipboard.readText()")
        assert copied.strip() == markdown.render(factory.ALL[name]()).strip()
        assert visit.complaints == []


def test_where_the_clipboard_is_closed_the_markdown_is_selected(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["gpu"]) as visit:
        visit.page.evaluate(
            "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('closed'));"
            " document.execCommand = () => false; }"
        )
        visit.page.get_by_role("button", name="Copy as Markdown").click()
        visit.page.get_by_role("button", name="Selected").wait_for()
        assert visit.page.evaluate("getSelection().toString()").startswith("## Llama-3-8B")
        assert visit.page.evaluate("document.querySelector('#markdown').open") is True


def test_everything_unfolds_at_once_and_folds_again(browser: Any, files: dict[str, Path]) -> None:
    closed = "document.querySelectorAll('main details:not([open])').length"
    with Visit(browser, files["gpu"]) as visit:
        assert visit.page.evaluate(closed) > 5
        visit.page.get_by_role("button", name="Expand all").click()
        assert visit.page.evaluate(closed) == 0
        visit.page.get_by_role("button", name="Collapse all").click()
        assert visit.page.evaluate("document.querySelectorAll('main details[open]').length") == 0


def test_a_link_to_a_finding_opens_it(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["gpu"]) as visit:
        visit.page.locator(".do-first a").click()
        visit.page.wait_for_function("document.querySelector('#finding-batch').open")
        assert visit.page.is_visible("#finding-batch .do")


def test_without_the_script_there_is_everything_but_controls(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["maximal"], java_script_enabled=False) as visit:
        assert visit.page.is_hidden(".tools")
        assert visit.page.is_hidden(".filter")
        assert visit.page.locator("#kernel-table button").count() == 0
        rows = visit.page.locator("#kernel-table tbody tr")
        assert sum(row.is_visible() for row in rows.all()) == 20
        visit.page.get_by_label("Show all 100 rows").check()
        assert sum(row.is_visible() for row in rows.all()) == 100
        visit.page.locator(".finding summary").first.click()
        assert visit.page.get_by_text("A step reads 15.0 GB of weights for one token.").first.is_visible()


@pytest.mark.parametrize("scripted", [True, False])
def test_paper_has_everything_and_no_controls(browser: Any, files: dict[str, Path], scripted: bool) -> None:
    with Visit(browser, files["maximal"], java_script_enabled=scripted) as visit:
        visit.page.emulate_media(media="print")
        for control in ("nav", ".tools", ".filter", ".fold", ".skip"):
            assert not any(found.is_visible() for found in visit.page.locator(control).all()), control
        assert all(row.is_visible() for row in visit.page.locator("#kernel-table tbody tr").all())
        for evidence in ("A step reads 15.0 GB of weights for one token.", "One GPU ran."):
            assert visit.page.get_by_text(evidence).first.is_visible()
        pdf = visit.page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert 5 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 40


def test_paper_is_white_in_a_dark_room(browser: Any, files: dict[str, Path]) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with Visit(browser, files["gpu"], color_scheme="dark") as visit:
        assert visit.page.evaluate(ground) != "rgb(255, 255, 255)"
        visit.page.emulate_media(media="print", color_scheme="dark")
        assert visit.page.evaluate(ground) == "rgb(255, 255, 255)"


def test_printing_leaves_the_page_as_it_was(browser: Any, files: dict[str, Path]) -> None:
    opened = "document.querySelectorAll('main details[open]').length"
    with Visit(browser, files["gpu"]) as visit:
        visit.page.locator("#findings-passed summary").click()
        visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert visit.page.evaluate("document.querySelectorAll('main details:not([open])').length") == 0
        visit.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert visit.page.evaluate(opened) == 1


def test_hostile_names_stay_text_whatever_the_script_does(browser: Any, files: dict[str, Path]) -> None:
    elements = "document.querySelectorAll('*').length"
    with Visit(browser, files["hostile"]) as visit:
        before = visit.page.evaluate(elements)
        visit.page.get_by_role("button", name="Kernel", exact=True).last.click()
        visit.page.get_by_label("Filter by name, kind or phase").fill("<img src=x onerror=alert(1)>")
        visit.page.get_by_role("button", name="Copy as Markdown").click()
        visit.page.get_by_role("button", name="Expand all").click()
        assert visit.page.evaluate(elements) == before
        assert visit.page.title() != "PWNED"
        assert visit.page.evaluate("document.querySelectorAll('img, iframe').length") == 0
        assert visit.requests == []
        assert visit.complaints == []
        keys = visit.page.evaluate("[...document.querySelectorAll('[data-v]')].map(e => e.dataset.v)")
        assert keys
        assert all(re.fullmatch(r"-?[\d.]+(e[+-]\d+)?", key) for key in keys)


def test_controls_show_where_the_keyboard_is(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["gpu"]) as visit:
        seen = {}
        for _ in range(120):
            visit.page.keyboard.press("Tab")
            name, outline = visit.page.evaluate(
                "[document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]"
            )
            seen.setdefault(name, set()).add(outline)
        assert set(seen) >= {"A", "BUTTON", "INPUT", "SUMMARY", "DIV"}
        assert {style for name in ("A", "BUTTON", "INPUT", "SUMMARY", "DIV") for style in seen[name]} == {"solid"}
