"""Pages under reference/, made from the code: place of the page -> its Markdown."""

from __future__ import annotations

import inspect
from typing import Callable, Iterator

from docs_build import api_pages, command_pages, contract_page, published_page, schema_page, storage_page, words
from docs_build.command_pages import prose
from docs_build.commands import PROGRAM
from hyperpod_kit import errors
from hyperpod_kit.cli.views import finding_texts
from hyperpod_kit.cli.views.finding_texts import FindingText
from hyperpod_kit.exit_codes import ExitCode

ADOPTED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages that lie in the repository's root, where people look for them."""

INDEX = """# Reference

Made from the code of this version: commands and options from the parsers, findings from the rules, exit codes from the
exceptions.

"""

FINDINGS = """# Findings

For anyone who has met a code in the output of a command. Codes are stable: a code keeps its meaning, and the code of a
check that was removed is not used again. A message shows in ‹› what the program fills in.
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
    every = finding_texts.all_texts()
    lines = [FINDINGS]
    for title, prefix, source in (
        ("Configuration", "HPK-", f"`{PROGRAM} validate` reports them, and every command that reads a configuration."),
        ("Job scripts", "J", f"`{PROGRAM} job lint` reports them."),
        ("Slurm", "S", f"`{PROGRAM} job doctor`, on a node, reports them."),
    ):
        entries = [entry for entry in every if entry.code.startswith(prefix)]
        lines += [f"## {title}", "", source, ""]
        topics = dict.fromkeys(entry.topic for entry in entries)
        for topic in topics:
            of_topic = [entry for entry in entries if entry.topic == topic]
            if len(topics) > 1:
                lines += [f"### {topic}", ""]
            lines += _codes(of_topic)
    return "\n".join(lines)


def _codes(entries: list[FindingText]) -> Iterator[str]:
    """A heading for each code, which the search finds by the code as a program prints it, and its messages."""
    for code in dict.fromkeys(entry.code for entry in entries):
        yield f"#### {code} {{ #{code.lower()} }}"
        yield ""
        for entry in entries:
            if entry.code == code:
                yield f"- **{entry.severity}**: {_sentence(prose(entry.message))}{_remedy(entry)}"
        yield ""


def _remedy(entry: FindingText) -> str:
    if not entry.hint:
        return ""
    return f" *Remedy*: {_sentence(prose(entry.hint))}"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!", ":")) else f"{text}."


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
    "reference/service-contract.md": ("Service contract: SageMaker's cluster API", contract_page.page),
    "reference/storage-choice.md": ("Which storage for what", storage_page.page),
    "reference/storage-published.md": ("The planner beside published figures", published_page.page),
}
