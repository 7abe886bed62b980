"""Puts JSON objects together from keys and the texts of their values."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


def joined(fields: Iterable[tuple[str, bytes]]) -> bytes:
    """An object. Two keys that have become the same are told apart, so that no value is lost."""
    out: dict[str, bytes] = {}
    for key, value in fields:
        number, unique = 2, key
        while unique in out:
            unique, number = f"{key}#{number}", number + 1
        out[unique] = value
    return b"{" + b", ".join(member(key, value) for key, value in out.items()) + b"}"


def member(key: str, value: bytes) -> bytes:
    """A key with what stands under it."""
    return msgspec.json.encode(key) + b": " + value
