"""Pages under reference/, made from the code: place of the page -> its Markdown."""

from __future__ import annotations

import inspect
from typing import Callable, Iterator

from docs_build import api_pages, command_pages, findings, published_page, schema_page, storage_page, words
from docs_build.command_pages import cell, prose
from docs_build.commands import PROGRAM
from hyperpod_kit import errors
from hyperpod_kit.exit_codes import ExitCode

ADOPTED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages that lie in the repository's root, where people look for them."""

INDEX = """# Reference

Made from the code of this version: commands and options from the parsers, findings from the rules, exit codes from the
exceptions.

"""

FINDINGS = """# Findings

Codes are stable: a code keeps its meaning, and one that is gone is not used again. What is filled in stands in ‹›.
"""

ERRORS = """
An error is one sentence on standard error: what failed, on what, expected against found; then a hint, the next command
to type. `hyperpod-kit --debug COMMAND` shows the stack trace too.

| error | exit code | when |
| --- | --- | --- |
"""


def all_pages() -> dict[str, str]:
    """Every generated page. Raises KeyError with the missing name when a state or variable has no words yet."""
    return {**command_pages.all_pages(), **{place: make() for place, (_, make) in _OTHERS.items()}}


def places() -> list[str]:
    """Where generated pages are, without making them."""
    return [*(command_pages.place_of(section) for section in command_pages.sections()), *_OTHERS]


def _index() -> str:
    lines = [
        f"- [{section}]({command_pages.place_of(section).removeprefix('reference/')}): {command_pages.names(section)}"
        for section in command_pages.sections()
    ]
    lines += [f"- [{title}]({place.removeprefix('reference/')})" for place, (title, _) in _OTHERS.items() if title]
    return INDEX + "\n".join(lines) + "\n"


def _findings() -> str:
    every = findings.entries()
    lines = [FINDINGS]
    for title, prefixes, who in (
        ("Configuration", ("HPK-",), f"`{PROGRAM} validate`, and every command that reads a configuration."),
        ("Job scripts", ("J",), f"`{PROGRAM} job lint`."),
        ("Slurm", ("S",), f"`{PROGRAM} job doctor`, on a node."),
    ):
        mine = [entry for entry in every if entry.code.startswith(prefixes)]
        lines += [f"## {title}", "", who, ""]
        topics = dict.fromkeys(entry.module for entry in mine)
        for module in topics:
            rows = [entry for entry in mine if entry.module == module]
            lines += [f"### {rows[0].about.rstrip('.')}", ""] if len(topics) > 1 else []
            lines += ["| code | what | remedy |", "| --- | --- | --- |", *_rows(rows), ""]
    return "\n".join(lines)


def _rows(entries: list[findings.Entry]) -> Iterator[str]:
    seen: set[str] = set()
    for entry in entries:
        anchor = "" if entry.code in seen else f'<a id="{entry.code.lower()}"></a>'
        seen.add(entry.code)
        what, remedy = cell(prose(entry.message)), cell(prose(entry.hint))
        yield f"| {anchor}**{entry.code}** {entry.severity} | {what} | {remedy} |"


def _exit_codes() -> str:
    lines = ["# Exit codes and errors", "", "| code | meaning |", "| --- | --- |"]
    lines += [f"| {code} | {code.meaning} |" for code in ExitCode]
    rows = [
        f"| `{one.__name__}` | {one.exit_code} | {prose((inspect.getdoc(one) or '').splitlines()[0])} |"
        for one in dict.fromkeys(_errors(errors.HyperpodKitError))
    ]
    return "\n".join(lines) + "\n" + ERRORS + "\n".join(rows) + "\n"


def _errors(top: type[errors.HyperpodKitError]) -> Iterator[type[errors.HyperpodKitError]]:
    yield top
    for one in top.__subclasses__():
        if one.__module__ == errors.__name__:
            yield from _errors(one)


def _keys() -> str:
    from hyperpod_kit.config.schema import build_schema

    return schema_page.page(build_schema(limits=False))


def _states() -> str:
    return _tables("States", words.STATES_INTRODUCTION, words.states())


def _variables() -> str:
    return _tables("Environment variables", words.VARIABLES_INTRODUCTION, words.variables())


def _tables(title: str, introduction: str, tables: dict[str, dict[str, str]]) -> str:
    lines = [f"# {title}", "", introduction, ""]
    for heading, rows in tables.items():
        table = [f"| `{name}` | {text} |" for name, text in rows.items()]
        lines += [f"## {heading}", "", "| name | |", "| --- | --- |", *table, ""]
    return "\n".join(lines)


_OTHERS: dict[str, tuple[str, Callable[[], str]]] = {
    "reference/index.md": ("", _index),
    "reference/keys.md": ("Configuration keys", _keys),
    "reference/findings.md": ("Findings: codes of `validate`, `job lint` and `job doctor`", _findings),
    "reference/exit-codes.md": ("Exit codes and errors", _exit_codes),
    f"{api_pages.FOLDER}/checkpoint.md": ("Python API: hyperpod_kit.checkpoint", api_pages.checkpoint_page),
    f"{api_pages.FOLDER}/data.md": ("Python API: hyperpod_kit.data", api_pages.data_page),
    f"{api_pages.FOLDER}/frameworks.md": ("Python API: frameworks", api_pages.frameworks_page),
    f"{api_pages.FOLDER}/errors.md": ("Python API: errors", api_pages.errors_page),
    "reference/states.md": ("States of mounts, saves and attempts", _states),
    "reference/environment.md": ("Environment variables", _variables),
    "reference/storage-choice.md": ("Which storage for what", storage_page.page),
    "reference/storage-published.md": ("The planner beside published figures", published_page.page),
}
