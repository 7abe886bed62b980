"""What the client and the server both know of the network: the shape of a token, and which hosts are this machine.

What could be wrong: a name that this machine alone resolves to itself is no loopback here, as nothing is looked up.
"""

from __future__ import annotations

import ipaddress
import re

TOKEN = re.compile(r"ta_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
"""A whole token, as the server makes it: its id, and its secret."""
TOKEN_ID = r"ta_[0-9a-fA-F]{12}_"  # noqa: S105 - a pattern
"""What comes before the secret, whatever became of the case of its letters on the way."""
TOKEN_START = TOKEN_ID + r"[A-Za-z0-9_-]{8}"
"""As much of a token as nothing else looks like."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`, a name or an address, in brackets or without."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
