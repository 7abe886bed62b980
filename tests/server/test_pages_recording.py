"""The windows of one recording are traces of their own; each one's page leads to the others."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tests.server.pages_setup import Page, browser, server
from traceanalyzer.server.traces import Labels


@pytest.mark.parametrize("recording", ["rec-7", 'a "b" & <c>?#%2F é'])
def test_a_page_leads_to_the_traces_of_its_recording(tmp_path: Path, recording: str) -> None:
    given = [recording, recording, recording.upper(), None]
    made = [hashlib.sha256(bytes([number])).hexdigest() for number in range(len(given))]
    with server(tmp_path) as (app, services):
        for number, name in enumerate(given):
            labels = Labels(name=f"{number}.json", recording=name, model=f"m{number}")
            services.traces.add(made[number], 1, 1, labels, None, 1000 * number)
        client = browser(app)
        (path,) = [
            link["href"] for link in Page(client.get(f"/t/{made[0]}").text).all("a") if "recording" in link["href"]
        ]
        listed = client.get(path).text
        assert re.findall(r'href="/t/([0-9a-f]{64})"', listed) == [made[1], made[0]]
        (field,) = [field for field in Page(listed).all("input") if field["name"] == "recording"]
        assert field["value"] == recording, "a further filter keeps it"
        assert re.findall(r'href="/t/([0-9a-f]{64})"', client.get(f"{path}&model=M1").text) == [made[1]]
        for page in (f"/t/{made[3]}", "/"):
            assert "recording=" not in client.get(page).text and 'name="recording"' not in client.get(page).text
