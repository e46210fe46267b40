"""The command reference: one page for each section of --help, whatever commands there are."""

from __future__ import annotations

import re
from typing import Iterator

from docs_build.commands import NODE_SECTION, Command, all_commands
from hyperpod_kit.cli.table import SECTIONS

ON_A_NODE = """`node`, `job` and `checkpoint` are on every node, in `/usr/local/bin/hyperpod-kit`, from the installed
bundle; `node` is there only.
"""


def all_pages() -> dict[str, str]:
    """Place of the page -> Markdown."""
    commands = all_commands()
    return {
        place_of(section): _page(section, [one for one in commands if one.section == section]) for section in sections()
    }


def sections() -> list[str]:
    """Titles, in the order of --help."""
    return [*SECTIONS, NODE_SECTION]


def place_of(section: str) -> str:
    """The page of a section."""
    return f"reference/commands/{re.sub(r'[^a-z0-9]+', '-', section.lower()).strip('-')}.md"


def names(section: str) -> str:
    """The section's commands, in a line."""
    return ", ".join(f"`{name}`" for name in SECTIONS.get(section, {"node": None}))


def _page(section: str, commands: list[Command]) -> str:
    lines = [f"# {section}", "", *([ON_A_NODE] if section == NODE_SECTION else [])]
    for command in commands:
        lines += [*_command(command), ""]
    return "\n".join(lines)


def _command(command: Command) -> Iterator[str]:
    yield f"{'#' * (1 + len(command.words))} `{command.name}` {{ #{'-'.join(command.words)} }}"
    yield ""
    yield from _help(command.text)
    if command.children:
        links = (f"[`{child}`](#{'-'.join((*command.words, child))})" for child in command.children)
        yield from (f"Commands: {', '.join(links)}", "")
    else:
        yield from ("```text", command.usage, "```", "")
    if command.options:
        rows = (f"| `{cell(written)}` | {cell(prose(text))} |" for written, text in command.options)
        yield from ("| argument or option | |", "| --- | --- |", *rows, "")
    if command.examples:
        yield from ("```bash", *command.examples, "```", "")


def _help(text: str) -> Iterator[str]:
    """Help as Markdown. A paragraph that is laid out by hand (indented lines) stays as it is."""
    for paragraph in re.split(r"\n\s*\n", text):
        if re.search(r"^ +\S", paragraph, re.MULTILINE):
            yield from ("```text", paragraph.strip("\n"), "```", "")
        else:
            yield from (prose(" ".join(paragraph.split())), "")


def cell(text: str) -> str:
    """Text for a cell of a table: one line, no column of its own."""
    return " ".join(text.split()).replace("|", "\\|")


def prose(text: str) -> str:
    """Text that came from a help or a docstring: what Markdown or HTML would take for itself is escaped."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<*_\[\]])", r"\\\1", part) for part in parts)
