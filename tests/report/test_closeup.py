"""The picture of one step: what it draws, and in Chromium that it can be walked through, zoomed, and read as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.report import factory
from tests.report.browsing import Visit
from traceanalyzer.errors import InputError
from traceanalyzer.report import html
from traceanalyzer.report.document import content_id
from traceanalyzer.report.views.closeup import closeup_views, whole_trace

NAMES = ["cudaLaunchKernel", "nvjet_tst_64x64", "flash_fwd_kernel", "rms_norm_kernel"]
SCROLL, SAID = ".closeup-scroll", ".closeup-said"


def shown() -> Any:
    return factory.gpu_generation(closeups=[factory.closeup("decode", NAMES)])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    reports = {"shown": shown(), "hostile": factory.hostile()}
    for name, report in reports.items():
        (folder / f"{name}.html").write_text(html.render(report), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in reports}


def test_a_lane_for_each_row_and_one_for_the_gaps() -> None:
    (view,) = closeup_views(shown())
    assert [lane.label for lane in view.lanes] == [
        "Host thread 1: ops", "Host thread 1: calls", "Stream 7", "Device idle",
    ]  # fmt: skip
    assert [len(lane.items) for lane in view.lanes] == [2, 2, 5, 4]
    assert [group for group, _ in view.groups] == ["p", "o", "h", "l", "s", "k"]
    assert view.ticks[-1] == "1.00 ms"
    first = view.lanes[2].items[0]
    assert (first.x, first.width, first.group) == ("20%", "12%", "p")


def test_the_longest_are_told_in_words() -> None:
    (view,) = closeup_views(shown())
    assert view.longest[0].duration == "120 µs"
    assert view.longest[0].start == "200 µs"  # from where the picture and its axis begin
    assert {item.where for item in view.longest} == {"Stream 7", "Device idle"}
    assert "Launching" in {item.name for item in view.longest}
    assert "2 short ones" in {item.name for item in view.longest}


def test_how_to_find_the_step_in_the_whole_trace() -> None:
    told = whole_trace(shown())
    assert factory.trace().name in told
    assert "700 µs" in told
    assert not whole_trace(factory.gpu_generation())


def test_the_file_to_open_is_that_of_the_device_that_is_shown() -> None:
    report = shown()
    (device,) = report.devices
    others = [factory.trace(name=f"rank{rank}.json", rank=rank) for rank in range(3)]
    second = report.model_copy(update={"traces": others, "devices": [device.model_copy(update={"rank": 1})]})
    assert "rank1.json" in whole_trace(second)
    windows = [factory.trace(name=f"window{place}.json") for place in range(2)]
    told = whole_trace(report.model_copy(update={"traces": windows}))
    assert "window0" not in told
    assert "700 µs" not in told


def _name_out_of_range(closeup: Any) -> None:
    closeup["rows"][0]["name"][0] = 99


def _start_lost(closeup: Any) -> None:
    closeup["rows"][0]["start_us"].pop()


def _cause_lost(closeup: Any) -> None:
    closeup["gaps"]["cause"].pop()


@pytest.mark.parametrize("change", [_name_out_of_range, _start_lost, _cause_lost])
def test_a_forged_page_is_an_input_error(change: Callable[[Any], None]) -> None:
    page = html.render(shown())
    begin = page.index(html._ELEMENT) + len(html._ELEMENT)
    end = page.index("</script>", begin)
    document = json.loads(page[begin:end])
    change(document["closeups"][0])
    document["report_id"] = content_id(document)
    with pytest.raises(InputError, match="does not follow the schema"):
        html.from_html(page[:begin] + json.dumps(document) + page[end:])


def test_arrow_keys_walk_through_the_picture(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["shown"]) as visit:
        said = visit.page.locator(SAID)
        visit.page.locator(SCROLL).focus()
        told = []
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown", "ArrowUp"):
            visit.page.keyboard.press(key)
            told.append(said.inner_text())
        assert told[0] == "Host thread 1: ops: cudaLaunchKernel (250.0 µs, at 0.00 µs)"
        assert told[1].startswith("Host thread 1: ops: rms_norm_kernel")
        assert told[2].startswith("Host thread 1: calls: rms_norm_kernel")
        assert told[3].startswith("Stream 7: nvjet_tst_64x64")  # the first that does not begin before it
        assert told[4].startswith("Stream 7: flash_fwd_kernel")
        assert told[5].startswith("Device idle: The host waited for the device (")
        assert told[6].startswith("Stream 7:")
        assert visit.page.locator(".closeup-svg .chosen").count() == 1
        assert visit.complaints == []
        assert visit.requests == []


def test_zooming_stretches_the_picture_and_the_whole_step_comes_back(browser: Any, files: dict[str, Path]) -> None:
    width = "document.querySelector('.closeup-svg').getBoundingClientRect().width"
    with Visit(browser, files["shown"]) as visit:
        whole = visit.page.evaluate(width)
        visit.page.locator(SCROLL).focus()
        visit.page.keyboard.press("+")
        visit.page.get_by_role("button", name="Zoom in").click()
        assert visit.page.evaluate(width) == pytest.approx(4 * whole, rel=0.01)
        visit.page.keyboard.press("Tab")
        visit.page.get_by_role("button", name="Whole step").click()
        assert visit.page.evaluate(width) == pytest.approx(whole, rel=0.01)
        visit.page.locator(".closeup-svg rect").nth(4).hover()
        assert visit.page.locator(SAID).inner_text().startswith("Stream 7: cudaLaunchKernel")


def test_hostile_names_are_text(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["hostile"]) as visit:
        visit.page.locator(SCROLL).focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowDown", *["ArrowRight"] * len(factory.HOSTILE)):
            visit.page.keyboard.press(key)
            assert visit.page.locator(f"{SAID} *").count() == 0
        assert visit.complaints == []


def test_without_the_script_the_picture_stands_and_nothing_asks_for_it(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["shown"], java_script_enabled=False) as visit:
        assert visit.page.locator(".closeup-svg rect").count() == 13
        assert not visit.page.get_by_role("button", name="Zoom in").is_visible()
        assert visit.page.locator("summary", has_text="The longest of them").is_visible()
