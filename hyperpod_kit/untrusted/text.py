"""Text for a terminal and a log. Words of others are made fit for it: no control character, no escape sequence, not
without end. A count gets the right form of its noun.

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


def counted(count: float, singular: str, plural: str = "", spec: str = "") -> str:
    """Return a count with its noun: `counted(1, "node")` is "1 node", and `counted(3, "node")` is "3 nodes".

    plural: where it is not the singular with an s; both may have a verb behind the noun: "node runs", "nodes run".
    spec: how the number is formatted, as in "," for 1,234.
    """
    number = format(count, spec)
    if number == "1":
        return f"{number} {singular}"
    return f"{number} {plural or singular + 's'}"
