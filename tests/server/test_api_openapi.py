"""The API is what its description says: its twelve operations, and whatever schemathesis makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS
from schemathesis.schemas import BaseSchema

from tests.server.asking import TRACE, client, kept, opened, path_of, sha256, token_of
from traceanalyzer.server.app import create_app
from traceanalyzer.server.blobs import REPORTS, key_of_report
from traceanalyzer.server.services import Services

OPERATIONS = {
    ("put", "/api/v1/traces/{sha256}"),
    ("head", "/api/v1/traces/{sha256}"),
    ("get", "/api/v1/traces/{sha256}"),
    ("delete", "/api/v1/traces/{sha256}"),
    ("get", "/api/v1/traces"),
    ("get", "/api/v1/traces/{sha256}/report"),
    ("get", "/api/v1/traces/{sha256}/links"),
    ("post", "/api/v1/traces/{sha256}/links"),
    ("delete", "/api/v1/links/{id}"),
    ("get", "/api/v1/health"),
    ("get", "/api/v1/version"),
    ("get", "/api/v1/metrics"),
}
EXAMPLES = 25
OFTEN = {"requests_per_minute": 1_000_000, "failures_per_minute": 1_000_000}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with opened(tmp_path_factory.mktemp("server"), limits=OFTEN, allowed_hosts=("testserver",)) as made:
        yield made


@pytest.fixture(scope="module")
def token(services: Services) -> str:
    return token_of(services, "admin")


@pytest.fixture(scope="module")
def described(services: Services, token: str) -> BaseSchema:
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", create_app(services))


def test_the_api_has_exactly_the_agreed_operations(services: Services) -> None:
    paths = client(create_app(services)).get("/api/v1/openapi.json").json()["paths"]
    assert {(method, path) for path, item in paths.items() for method in item} == OPERATIONS


def test_every_operation_but_health_and_version_names_its_security(services: Services) -> None:
    paths = client(create_app(services)).get("/api/v1/openapi.json").json()["paths"]
    for path, item in paths.items():
        for operation in item.values():
            assert ("security" in operation) == (path not in ("/api/v1/health", "/api/v1/version"))
            problems = [answer for status, answer in operation["responses"].items() if int(status) >= 400]
            assert problems
            assert all(list(answer["content"]) == ["application/problem+json"] for answer in problems)


@pytest.fixture
def known(services: Services, tmp_path: Path) -> dict[str, str]:
    """A trace with a report and a link, so that not every answer is that there is none."""
    client(create_app(services), token_of(services, "upload")).put(path_of(TRACE), content=TRACE)
    digest = sha256(TRACE)
    for kind in REPORTS:
        (tmp_path / kind).write_text("{}", encoding="utf-8")
        services.blobs.put_file(key_of_report(digest, kind), tmp_path / kind)
    return {"sha256": digest, "id": services.links.make(digest, "x")[0].id}


# What a description cannot say: that a body has its hash, and that the place in a list is one that was told before.
BEYOND_THE_DESCRIPTION = {("put", "/api/v1/traces/{sha256}"), ("get", "/api/v1/traces")}


@pytest.mark.parametrize(("method", "path"), sorted(OPERATIONS))
def test_answers_are_as_documented(
    described: BaseSchema, services: Services, token: str, known: dict[str, str], method: str, path: str
) -> None:
    operation = described[path][method]
    strategies = {mode: operation.as_strategy(generation_mode=mode) for mode in GenerationMode}
    unchecked = [CHECKS.get_one("positive_data_acceptance")] if (method, path) in BEYOND_THE_DESCRIPTION else []
    statuses = set()

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data(), valid=st.booleans(), of_known=st.booleans())
    def ask(data: st.DataObject, valid: bool, of_known: bool) -> None:
        case = data.draw(strategies[GenerationMode.POSITIVE if valid else GenerationMode.NEGATIVE])
        if valid and of_known:
            case.path_parameters.update({name: known[name] for name in case.path_parameters})
        answer = case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, excluded_checks=unchecked)
        statuses.add(answer.status_code)

    ask()
    assert any(status < 300 for status in statuses)
    assert kept(services)["incoming"] == []
