"""Words of others, made fit for a terminal and a log: no control character, no escape sequence, not without end.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

LONGEST = 300
"""Characters that one value may have on a line."""


def clean_one_line(value: object, most: int = LONGEST) -> str:
    """One line, printable, of at most `most` characters; what cannot be printed becomes a blank, blanks become one."""
    return shortened(" ".join(replace_unprintable(str(value)[: 4 * most]).split()), most)


def replace_unprintable(text: str) -> str:
    """The text with a blank for each character that cannot be printed, line ends and tabs among them."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def replace_unprintable_in_lines(text: str) -> str:
    """Return the text with a blank for each character that cannot be printed, except line feeds and tabs."""
    return "\n".join("\t".join(map(replace_unprintable, line.split("\t"))) for line in text.split("\n"))


def shortened(text: str, most: int) -> str:
    """At most `most` characters, the last of them an ellipsis when there were more."""
    if len(text) <= most:
        return text
    return text[: most - 1] + "…"
