"""Text from a trace, made safe to show: every character that a reader cannot see is written out.

Names come from other people's files. A control character can end a line or a terminal's good mood, a bidirectional
override can make a name read as another one, and U+2028 ends a line in old JavaScript. Each such character is shown as
a visible escape, in the page, in the Markdown and in the terminal alike, so no ANSI sequence survives. Escaping for the
medium (HTML, Markdown) comes on top of this and is the renderers' job.

What could be wrong: what counts as unassigned follows the Unicode tables of the running Python, and the joiners of some
scripts and emoji are shown as escapes too.
"""

from __future__ import annotations

import unicodedata

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"

_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """The same text with invisible characters written out as their number between angle brackets."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_written_out(character) for character in text)


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters: the start and the end of the text around an ellipsis, for the end of a kernel name
    often holds what tells it from its neighbours."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    tail = limit - 1 - head
    return f"{text[:head]}{ELLIPSIS}{text[len(text) - tail :]}"


def _written_out(character: str) -> str:
    if unicodedata.category(character) not in _INVISIBLE:
        return character
    number = f"U+{ord(character):04X}"
    return f"\N{MATHEMATICAL LEFT DOUBLE ANGLE BRACKET}{number}\N{MATHEMATICAL RIGHT DOUBLE ANGLE BRACKET}"
