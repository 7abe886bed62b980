"""Reads the bodies of requests from the network: with patience, but not for ever, and small ones as a whole.

What could be wrong: a client that is just fast enough holds its connection for as long as its body is long; a small
body that crawls is ended half a minute after it began.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from traceanalyzer.server.problems import Problem
from traceanalyzer.server.settings import Limits

SMALL_BYTES = 16384
"""A form's fields, or the JSON of a request; never a trace."""

_PIECE = 1 << 18
_RATE_AFTER_S = 30.0


async def patient(stream: AsyncIterator[bytes], limits: Limits) -> AsyncIterator[bytes]:
    """The body as it arrives.

    Raises:
        Problem: 408 for one that stops or crawls, 400 for one that breaks off.
    """
    total, waited = 0, 0.0
    source = aiter(stream)
    while True:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(limits.slow_body_s):
                data = await anext(source, None)
        except TimeoutError as error:
            raise Problem(408, f"no byte of the body arrived for {limits.slow_body_s:g} s") from error
        except ClientDisconnect as error:
            raise Problem(400, "the body broke off") from error
        if data is None:
            return
        waited += time.monotonic() - begun
        total += len(data)
        if waited > _RATE_AFTER_S and total < limits.min_rate_bytes * waited:
            raise Problem(408, f"the body is slower than {limits.min_rate_bytes} bytes per second")
        yield data


async def gathered(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in pieces of about 256 KiB: each piece is one task for a thread."""
    waiting: list[bytes] = []
    size = 0
    async for data in stream:
        waiting.append(data)
        size += len(data)
        if size >= _PIECE:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
    if waiting:
        yield b"".join(waiting)


async def small(request: Request, limits: Limits) -> bytes:
    """A body of at most `SMALL_BYTES`, whole; more than that is neither kept nor waited for.

    Raises:
        Problem: 413 for a larger one; 408 and 400 as `patient`.
    """
    body = bytearray()
    async for piece in patient(request.stream(), limits):
        body += piece
        if len(body) > SMALL_BYTES:
            raise Problem(413, f"the body is larger than the {SMALL_BYTES} bytes it may have")
    return bytes(body)
