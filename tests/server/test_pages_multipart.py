"""The form reader gives the same parts however the body is cut, and never more than a form may hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from traceanalyzer.server.pages.multipart import BrokenForm, parts

TYPE = "multipart/form-data; boundary=----WebKitFormBoundaryAbc"
FILE = bytes(range(256)) * 3 + b"\r\n--not the boundary\r\n------WebKitFormBoundaryAb"
BODY = (
    b"------WebKitFormBoundaryAbc\r\n"
    b'Content-Disposition: form-data; name="model"\r\n\r\n'
    b"Llama \xe2\x82\xac\r\n"
    b"------WebKitFormBoundaryAbc\r\n"
    b'content-disposition: form-data; name="files"; filename="C:\\traces\\a.json"\r\n'
    b"Content-Type: application/json\r\n\r\n" + FILE + b"\r\n"
    b"------WebKitFormBoundaryAbc\r\n"
    b'Content-Disposition: form-data; name="files"; filename=""\r\nContent-Type: application/octet-stream\r\n\r\n\r\n'
    b"------WebKitFormBoundaryAbc--\r\n"
)


async def cut(body: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


async def read(
    body: bytes, size: int, skipped: bool = False, unread: int = 10**6
) -> list[tuple[str, str | None, bytes]]:
    found = []
    async for part in parts(TYPE, cut(body, size), unread):
        content = b"" if skipped else b"".join([piece async for piece in part.content])
        found.append((part.name, part.filename, content))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 10**6])
def test_parts_do_not_depend_on_how_the_body_arrives(size: int) -> None:
    assert asyncio.run(read(BODY, size)) == [
        ("model", None, "Llama \N{EURO SIGN}".encode()),
        ("files", "a.json", FILE),
        ("files", "", b""),
    ]


def test_what_nobody_reads_is_passed_over_up_to_a_limit() -> None:
    assert [name for name, _, _ in asyncio.run(read(BODY, 50, skipped=True))] == ["model", "files", "files"]
    with pytest.raises(BrokenForm):
        asyncio.run(read(BODY, 50, skipped=True, unread=len(FILE) - 1))
    assert len(asyncio.run(read(BODY, 50, unread=0))) == 3


@pytest.mark.parametrize("length", range(0, len(BODY) - 2, 37))
def test_a_body_that_ends_early_is_no_form(length: int) -> None:
    with pytest.raises(BrokenForm):
        asyncio.run(read(BODY[:length], 100))


def test_a_field_is_small_text() -> None:
    async def value(content: bytes, most: int) -> str:
        body = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + content + b"\r\n--b--\r\n"
        async for part in parts("multipart/form-data; boundary=b", cut(body, 8), 0):
            return await part.field(most)
        return ""

    assert asyncio.run(value(b"12345", 5)) == "12345"
    for content in (b"123456", b"\xff\xfe"):
        with pytest.raises(BrokenForm):
            asyncio.run(value(content, 5))
