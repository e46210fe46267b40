"""The docstrings of the public names of `hyperpod_kit.checkpoint` and `hyperpod_kit.data`: sections and examples."""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import hyperpod_kit.checkpoint as checkpoint
import hyperpod_kit.data as data
from docs_build.blocks import Block

SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example):$")
ENTRY = re.compile(r"^    (\*{0,2}\w+): \S")
INTRODUCTION = re.compile(r"\A(?P<sentence>[^\n]+:)\n\n(?P<code>    .*)\Z", re.DOTALL)


def sections(docstring: str) -> Dict[str, List[str]]:
    """The lines of each section of a docstring; those before the first section under the empty name."""
    lines: Dict[str, List[str]] = {"": []}
    name = ""
    for line in inspect.cleandoc(docstring).splitlines():
        header = SECTION.match(line)
        if header:
            name = header.group(1)
            lines[name] = []
        else:
            lines[name].append(line)
    return lines


def entries(section: List[str]) -> List[str]:
    """The names that a section explains, in its order."""
    return [entry.group(1).lstrip("*") for entry in map(ENTRY.match, section) if entry]


def public_objects() -> Iterator[Tuple[str, Any]]:
    """The public names of both packages, with what they name."""
    for package in (checkpoint, data):
        for name in package.__all__:
            yield f"{package.__name__}.{name}", getattr(package, name)


def public_callables() -> Iterator[Tuple[str, Callable[..., Any]]]:
    """The public functions, and the public methods that a public class defines itself."""
    for name, public in public_objects():
        if not inspect.isclass(public):
            yield name, public
            continue
        for attribute, member in vars(public).items():
            if attribute.startswith("_") or isinstance(member, (property, functools.cached_property)):
                continue
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function):
                yield f"{name}.{attribute}", function


@dataclass(frozen=True)
class Example:
    """The example of one docstring. `sentence`: what stands before the code and introduces names; "" where nothing."""

    name: str
    sentence: str
    block: Block


def example_of(name: str, documented: Any) -> Iterator[Example]:
    """The example in a docstring, if it has one."""
    lines = sections(documented.__doc__ or "").get("Example")
    if not lines:
        return
    text = textwrap.dedent("\n".join(lines)).strip("\n")
    introduced = INTRODUCTION.match(text)
    sentence = introduced["sentence"] if introduced else ""
    code = textwrap.dedent(introduced["code"]) if introduced else text
    source = Path(inspect.getsourcefile(documented) or "")
    line = inspect.getsourcelines(documented)[1]
    yield Example(name, sentence, Block(source, line, "python", "", code + "\n"))


def examples() -> List[Example]:
    """The examples of all public names and methods."""
    documented = dict(public_objects())
    documented.update(public_callables())
    return [example for name, public in documented.items() for example in example_of(name, public)]
