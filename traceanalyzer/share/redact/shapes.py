"""Finds in any text what is known by its shape alone, and puts a word for it in its place.

    credentials  tokens of the usual services, keys, JWTs, `Bearer ...`, `password=...`, `scheme://user:password@`
    emails       a@b.c
    hosts        those that the file names itself (see `known`), names under internal domains, and of every URL
    users        those whose home folders the file names
    paths        absolute ones keep their last part, or what follows a package's folder; homes and `~` as well
    addresses    IPv4 and IPv6

Rules are applied in this order, and none changes what another put there, so that a second pass changes nothing.
What could be wrong: a credential without one of the usual marks is a word like any other; four numbers with dots are
taken for an address even where they are a version.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from traceanalyzer.network import TOKEN_ID
from traceanalyzer.share.redact.known import PACKAGES, Known
from traceanalyzer.share.redact.levels import digest

_CREDENTIALS = re.compile(
    r"""
    (?P<keep>(?<![A-Za-z0-9])(?i:api[_-]?key|access[_-]?key(?:[_-]?id)?|secret(?:[_-]?(?:access[_-]?)?key)?|auth[_-]?token
        |token|passw(?:or)?d|passphrase|pwd|credentials?|cookie|authorization)["']?\s{0,3}(?:=|:(?!:))\s{0,3})
        (?!["']?\[credential\])
        (?:"[^"]*+"?|'[^']*+'?|(?i:(?:bearer|basic)\s+)?(?!\d{1,6}(?![\w.-]))[^\s"'&,;)\]}]++)
    |(?:gh[opsur]_|github_pat_|glpat-|dckr_pat_|nvapi-|dop_v1_|shpat_)(?=[\w.-]{0,40}?\d|[A-Za-z0-9]{12})[\w.-]{8,}+
    |(?<![A-Za-z0-9])(?:
        xox[a-z]-[\w-]{8,}|(?:[sprg]k_live_|sk_test_)\w{8,}|gsk_[A-Za-z0-9]{16,}
        |hf_(?=[A-Za-z]{0,200}\d|\w{20})[A-Za-z0-9]{8,}
        |sk-(?=[\w-]{0,200}\d)[\w-]{10,}|(?:npm_|pypi-|tvly-|figd_|r8_)(?=[\w-]{0,200}\d)[A-Za-z0-9-]{20,}|AIza[\w-]{20,}
        |ya29\.[\w-]{8,}|SG\.[\w-]{10,}\.[\w-]{10,}|"""
    + TOKEN_ID
    + r"""[\w-]{8,}
        |eyJ[\w-]{8,}(?:\.[\w-]*){0,4}|(?:AKIA|ASIA|AGPA|AROA|AIDA)[A-Z0-9]{12,}
        |(?i:bearer|basic)\s+(?!\[credential\])(?=[A-Za-z+/_.=~-]{0,200}\d|\S{16})[A-Za-z0-9+/_.=~-]{8,})
    |-----BEGIN\ [A-Z ]{1,40}-----(?s:.*?)(?:-----END\ [A-Z ]{1,40}-----|\Z)
    |(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)(?!\[credential\]@)[^/\s@]{0,200}@
    """,
    re.VERBOSE | re.ASCII,
)
_CREDENTIAL_SIGNS = (
    "key", "token", "passw", "passphrase", "pwd", "secret", "credential", "cookie", "authorization", "ghp_", "gho_",
    "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "dckr_pat_", "nvapi-", "dop_v1_", "shpat_", "xox", "k_live_",
    "sk_test_", "gsk_", "hf_", "sk-", "npm_", "pypi-", "tvly-", "figd_", "r8_", "aiza", "ya29.", "sg.", "ta_", "eyj",
    "akia", "asia", "agpa", "aroa", "aida", "bearer", "basic", "-----begin", "://",
)  # fmt: skip
"""One of these stands in every credential, in lower case: looking for each is faster than for the pattern."""
_EMAIL = re.compile(r"[\w.+%-]{1,64}+@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,63}(?![A-Za-z0-9])")
_AT_ADDRESS = re.compile(r"[\w.+%-]{1,64}+@\[(?:ipv6:)?[0-9a-f:.]{2,45}\]", re.IGNORECASE)
_URL = re.compile(r"\b(?!file:)([A-Za-z][A-Za-z0-9+.-]{1,20})://(?!\[host\])[^\s\"'<>,;(){}]+", re.ASCII)
_INTERNAL = re.compile(
    r"(?<![\w.-])(?:[a-z0-9][a-z0-9-]{0,62}\.){1,8}(?:internal|corp|intranet|lan|cluster\.local|amazonaws\.com)(?![\w-])"
    r"|(?<![\w-])ip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}(?![\w-])",
    re.ASCII | re.IGNORECASE,
)
_INTERNAL_SIGNS = ("internal", "corp", "intranet", "lan", "cluster.local", "amazonaws.com", "ip-")
_UNMARKED = r"(?<!\[path\])(?<!\[home\])(?<!\[host\])"
_SPACED_HOME = re.compile(r"(/(?:home|Users)/)[^/\r\n\"':;,()<>]{1,64}(?=/)")
_HOME = re.compile(rf"{_UNMARKED}(?<![\w./])/root(?![\w/-])|(?<![\w~])~[\w.-]*(?=/)")
_PATH = re.compile(
    rf"{_UNMARKED}(?:(?<![^\s\"'=:,;()<>{{}}|`\[\]@!?&*_-])|(?=/(?:home|Users)/))(?:/++[^\s/\"':,;()<>{{}}|\\]++){{2,}}+/?"
)
_WINDOWS = re.compile(
    r"(?:(?<![A-Za-z0-9])[A-Za-z]:|(?<!\\)\\\\[\w.$-]+|(?=\\Users\\))(?:[\\/]++[^\\/:*?\"<>|\r\n,;()]++)++[\\/]*+"
)
_TEMPORARY = re.compile(r"(?<![A-Za-z0-9])tmp(?=[a-z_]{0,8}[0-9])[a-z0-9_]{8}(?![A-Za-z0-9_])", re.ASCII)
_IPV4 = re.compile(
    r"(?<![A-Za-z0-9.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![A-Za-z0-9]|\.\d)", re.ASCII
)
_IPV6 = re.compile(
    r"(?<![A-Za-z0-9:.])[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]{2,38}(?:\.\d{1,3}){0,3}(?:%\w{1,15})?(?![A-Za-z0-9:])", re.ASCII
)
_ROUTABLE = re.compile(r"(?:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3}):", re.IGNORECASE)
_MOST_PASSES = 4
_LONGEST = 8192
"""How long a text may be, in characters: four times the longest name of a kernel."""
_MOST_READ = 8000
_ENDS = " \t\n,;()<>{}[]\"'|&"
_INSTALLED = ("site-packages", "dist-packages")
_PYTHON = re.compile(r"python\d(?:\.\d+)?", re.ASCII)


class Scrubbed(NamedTuple):
    """A text without what was found, and how often which kind was."""

    text: str
    kinds: Counter[str]


class Shapes:
    """The rules, with the names that one file gives away itself.

    Args:
        known: the names of hosts and users.
    """

    def __init__(self, known: Known) -> None:
        """Compile what is known of this file."""
        self._everywhere, self._in_prose = known.distinctive, known.all

    def scrub(self, text: str, prose: bool = True) -> Scrubbed:
        """Replace everything that has a shape, until nothing is left that has one.

        Args:
            text: any text.
            prose: a user or a library may have put anything there; False for names of kernels and ops, in which a name
                that is an ordinary word ("user") is let stand.
        """
        if len(text) > _LONGEST:
            return self._long(text, prose)
        kinds: Counter[str] = Counter()
        for _ in range(_MOST_PASSES):
            before, text = text, self._once(kinds, text, prose)
            if text == before:
                break
        if len(text) > _LONGEST:  # it has grown
            text = f"text:{digest(text)}"
        return Scrubbed(text, +kinds)

    def _long(self, text: str, prose: bool) -> Scrubbed:
        """Its beginning, up to the end of a word, and a hash of the rest, which nobody reads: time stays bounded."""
        head = text[:_MOST_READ]
        end = max(head.rfind(mark) for mark in _ENDS) + 1
        found = self.scrub(head[:end], prose)
        rest = f"text:{digest(text[end:])}"
        if len(found.text) > _LONGEST - len(rest):
            return Scrubbed(rest, found.kinds + Counter(texts=1))
        return Scrubbed(found.text + rest, found.kinds + Counter(texts=1))

    def _once(self, kinds: Counter[str], text: str, prose: bool) -> str:
        def count(kind: str, result: tuple[str, int]) -> str:
            kinds[kind] += result[1]
            return result[0]

        lower = text.lower()
        if any(sign in lower for sign in _CREDENTIAL_SIGNS):
            text = count("credentials", _CREDENTIALS.subn(_credential, text))
        if "@" in text:
            text = count("addresses", _AT_ADDRESS.subn("[address]", text))
            text = count("emails", _EMAIL.subn("[email]", text))
        if "://" in text:
            text = count("hosts", _URL.subn(r"\1://[host]", text))
        if "/" in text:
            if "~" in text or "/root" in text:
                text = count("paths", _HOME.subn("[home]", text))
            text = _counted(kinds, "paths", _PATH, _path, _SPACED_HOME.sub(r"\1_", text))
        if "\\" in text or ":/" in text:
            text = _counted(kinds, "paths", _WINDOWS, _windows, text)
        if prose and "tmp" in text:
            text = count("paths", _TEMPORARY.subn("[tmp]", text))
        text = (self._in_prose if prose else self._everywhere).replace(text, lower, kinds)
        if any(sign in lower for sign in _INTERNAL_SIGNS):
            text = count("hosts", _INTERNAL.subn("[host]", text))
        if text.count(".") > 2:
            text = count("addresses", _IPV4.subn("[address]", text))
        return _counted(kinds, "addresses", _IPV6, _ipv6, text) if text.count(":") > 1 else text


def _credential(match: re.Match[str]) -> str:
    if match["keep"]:
        return f"{match['keep']}[credential]"
    return f"{match['scheme']}[credential]@" if match["scheme"] else "[credential]"


def _path(found: str) -> str:
    """The last part of an absolute path, or what follows the folder of packages or of a known one."""
    parts = [part for part in found.split("/") if part]
    if len(parts) <= 2 and parts[0] in ("home", "Users"):
        return "[home]"
    return "/".join(["[path]", *_tail(parts)])


def _windows(found: str) -> str:
    parts = [part for part in re.split(r"[\\/]+", found) if part]
    if len(parts) <= 3 and "users" in (part.lower() for part in parts[:2]):
        return "[home]"
    return "\\".join(["[path]", *_tail(parts)])


def _tail(parts: list[str]) -> list[str]:
    for at in range(len(parts) - 2, 0, -1):
        if parts[at] in _INSTALLED or _PYTHON.fullmatch(parts[at]):
            return parts[at + 1 :]
    inside = [at for at in range(1, len(parts) - 1) if parts[at] in PACKAGES]
    return parts[inside[-1] :] if inside else parts[-1:]


def _ipv6(found: str) -> str:
    """C++ names and times of day look like addresses: what is one has five groups, or begins like one in use."""
    if found.count(":") < 4 and not _ROUTABLE.match(found):
        return found
    try:
        ipaddress.IPv6Address(found)
    except ValueError:
        return found
    return "[address]"


def _counted(kinds: Counter[str], kind: str, pattern: re.Pattern[str], replace: Callable[[str], str], text: str) -> str:
    """Substitute, counting what was really changed."""

    def one(match: re.Match[str]) -> str:
        after = replace(match.group())
        kinds[kind] += after != match.group()
        return after

    return pattern.sub(one, text)
