"""Whom a server without tokens trusts: this machine, and nobody whom a proxy has let in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from tests.server.asking import client, opened
from traceanalyzer.server.app import create_app

LIST = "/api/v1/traces"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    with opened(tmp_path_factory.mktemp("server")) as services:
        yield create_app(services)


@pytest.mark.parametrize(
    "header",
    [
        "Forwarded", "Via", "X-Real-IP", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto",
        "X-Forwarded-Port", "X-Forwarded-Server", "X-Forwarded-Prefix", "x-forwarded-anything", "CF-Connecting-IP",
        "True-Client-IP",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["127.0.0.1", ""])
def test_what_a_proxy_passed_on_is_not_local(app: FastAPI, header: str, value: str) -> None:
    assert client(app).get(LIST, headers={header: value}).status_code == 401


@pytest.mark.parametrize(
    ("address", "status"), [("127.0.0.1", 200), ("127.8.9.10", 200), ("::1", 200), ("10.0.0.7", 401), ("unix", 401)]
)
def test_this_machine_is_local(app: FastAPI, address: str, status: int) -> None:
    assert client(app, address=address).get(LIST, headers={"X-Requested-With": "x", "X-Forward": "x"}).status_code == (
        status
    )
