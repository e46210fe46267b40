"""An extension of griffe: the `Example:` section of a docstring, which is plain code there, becomes a block of code,
and a default that is a private constant is shown as its value."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

_SECTION = re.compile(r"^Example:\n((?:    .*\n?|\n)+)", re.MULTILINE)
_INTRODUCTION = re.compile(r"\A(?P<sentence>[^\n]+:)\n\n(?P<code>    .*)\Z", re.DOTALL)
"""A sentence that names what the code takes for granted, before code that is indented once more."""


class FencedExamples(griffe.Extension):
    """Fence the code of every example before griffe parses the docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = _SECTION.sub(_fenced, obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Called by griffe for every function and method, in their order in the module."""
        for parameter in func.parameters:
            constant = func.module.members.get(str(parameter.default))
            if isinstance(constant, griffe.Attribute) and constant.name.startswith("_"):
                parameter.default = constant.value


def _fenced(section: re.Match[str]) -> str:
    text = textwrap.dedent(section[1]).strip("\n")
    introduced = _INTRODUCTION.match(text)
    lines = ["Examples:"]
    code = text
    if introduced is not None:
        lines += [f"    {introduced['sentence']}", ""]
        code = textwrap.dedent(introduced["code"])
    lines += ["    ```python", *(f"    {line}".rstrip() for line in code.splitlines()), "    ```"]
    return "\n".join(lines) + "\n"
