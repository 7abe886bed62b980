"""The page in Chromium: no request, no error, no script of a hostile name, readable at any width, dark and on paper."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.report import factory
from tests.report.browsing import Visit
from traceanalyzer.report import html

ALL = sorted(factory.ALL)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, make in factory.ALL.items():
        (folder / f"{name}.html").write_text(html.render(make()), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in factory.ALL}


@pytest.mark.parametrize("name", ALL)
def test_no_request_leaves_and_nothing_is_complained_of(browser: Any, files: dict[str, Path], name: str) -> None:
    with Visit(browser, files[name], viewport={"width": 1280, "height": 900}) as visit:
        for fold in visit.page.query_selector_all("summary:visible, .fold"):
            fold.click()
        visit.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert visit.requests == []
        assert visit.complaints == []
        assert visit.page.evaluate("document.styleSheets.length") == 1


def test_the_policy_is_in_force(browser: Any, files: dict[str, Path]) -> None:
    """The page's own policy forbids what a hostile name would need, so the tests above can fail."""
    with Visit(browser, files["gpu"]) as visit:
        visit.page.evaluate(
            "() => { const i = new Image(); i.src = 'http://evil.example/x.png'; document.body.append(i);"
            " const s = document.createElement('script'); s.textContent = 'document.title=1'; document.body.append(s);"
            " document.body.setAttribute('style', 'color: red'); }"
        )
        assert visit.page.title().startswith("Llama-3-8B")
        assert visit.requests == []
        assert len(visit.complaints) == 3


def test_no_name_runs(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["hostile"]) as visit:
        assert visit.page.title() != "PWNED"
        assert visit.page.evaluate("document.querySelectorAll('img, script').length") == 2
        assert "<built-in function len>" in visit.page.inner_text("body")


@pytest.mark.parametrize("width", [390, 768, 1280])
@pytest.mark.parametrize("name", ALL)
def test_the_page_never_scrolls_sideways(browser: Any, files: dict[str, Path], name: str, width: int) -> None:
    with Visit(browser, files[name], viewport={"width": width, "height": 844}) as visit:
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        visit.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_answer_needs_no_script(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["gpu"], java_script_enabled=False) as visit:
        shown = visit.page.inner_text("main")
    for part in ("Decode is bound by the host", "56 %", "Weights 15.0 GB", "Tensor cores waiting 39 %", "97.4 ms"):
        assert part in shown


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_apply(browser: Any, files: dict[str, Path], scheme: str) -> None:
    with Visit(browser, files["gpu"], color_scheme=scheme) as visit:
        background = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        roof = visit.page.evaluate(
            "getComputedStyle(document.querySelector('.chart path[stroke-width=\"1.6\"]')).stroke"
        )
    bright = [int(part) for part in re.findall(r"\d+", background)][:3]
    line = [int(part) for part in re.findall(r"\d+", roof)][:3]
    assert (min(bright) > 200) == (scheme == "light")
    assert (max(line) < 128) == (scheme == "light")


def test_paper_shows_what_is_folded(browser: Any, files: dict[str, Path]) -> None:
    shown = "document.querySelector('#ledger-table table').checkVisibility()"
    with Visit(browser, files["gpu"]) as visit:
        assert visit.page.evaluate(shown) is False
        visit.page.emulate_media(media="print")
        assert visit.page.evaluate(shown) is True
        assert visit.page.is_hidden("nav")
        assert visit.page.pdf(format="A4").startswith(b"%PDF")


def test_the_keyboard_reaches_the_content_and_the_tables(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["gpu"]) as visit:
        visit.page.keyboard.press("Tab")
        assert visit.page.evaluate("document.activeElement.className") == "skip"
        assert visit.page.evaluate("document.activeElement.getBoundingClientRect().x") >= 0
        visit.page.keyboard.press("Enter")
        assert visit.page.url.endswith("#content")
        seen = set()
        for _ in range(80):
            visit.page.keyboard.press("Tab")
            seen.add(visit.page.evaluate("document.activeElement.tagName + '.' + document.activeElement.className"))
        assert {"SUMMARY.", "DIV.scroll", "A.term"} <= seen


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it, of #rrggbb."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def themes() -> dict[str, dict[str, str]]:
    style = (ROOT / "templates" / "report.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", style, flags=re.DOTALL)[:2]
    colours = {name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for name, block in
               (("light", light), ("dark", dark))}  # fmt: skip
    assert set(colours["light"]) == set(colours["dark"])
    return colours


def test_the_contrast_formula() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_marks_can_be_told_from_their_ground(theme: str) -> None:
    colour = themes()[theme]
    for ground in ("bg", "surface"):
        for text in ("ink", "ink-soft", "accent", "error", "warning", "ok", "info"):
            assert contrast(colour[text], colour[ground]) >= 4.5, (text, ground)
        for mark in [name for name in colour if name.startswith("phase-")]:
            assert contrast(colour[mark], colour[ground]) >= 3.0, (mark, ground)
    assert contrast(colour["accent"], colour["accent-soft"]) >= 4.5
    assert contrast(colour["accent"], colour["track"]) >= 3.0
    assert contrast(colour["ink"], colour["track"]) >= 4.5
    assert contrast(colour["notice-ink"], colour["notice"]) >= 4.5
    for group in ("idle", "moving", "busy", "waiting", "useful", "unknown"):
        assert contrast(colour["g-ink"], colour[f"g-{group}"]) >= 4.5, group
