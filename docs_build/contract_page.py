"""The service contract as a page: every operation and field of SageMaker's cluster API, with its verdict."""

from __future__ import annotations

from typing import Iterator

from docs_build.command_pages import cell, prose
from hyperpod_kit.aws.service_contract import OPERATIONS
from hyperpod_kit.aws.verdicts import FieldVerdict, Judgement

INTRODUCTION = """# The service contract

For admins who read AWS's release notes: what hyperpod-kit does with every operation and every field of SageMaker's
cluster API, by the service model of the botocore that this version was tested with. A field that AWS adds has no row
yet: in `api` it then passes with the finding HPK-R007, and the tests of hyperpod-kit name it.

| verdict | |
| --- | --- |
"""


def page() -> str:
    """The page as Markdown."""
    lines = [INTRODUCTION.rstrip(), *(f"| {verdict.value} | {prose(verdict.meaning)} |" for verdict in FieldVerdict)]
    lines += ["", "## Operations", "", "| operation | verdict | source | effect |", "| --- | --- | --- | --- |"]
    for name, operation in OPERATIONS.items():
        source = cell(_code(operation.source))
        lines.append(f"| `{name}` | {operation.verdict.value} | {source} | {cell(prose(operation.effect))} |")
    for name, operation in OPERATIONS.items():
        for side, rows in (("request", operation.request), ("answer", operation.response)):
            if rows:
                lines += [
                    "",
                    f"## {name}: {side}",
                    "",
                    "| field | verdict | source | effect |",
                    "| --- | --- | --- | --- |",
                ]
                lines += _rows(rows)
    return "\n".join(lines) + "\n"


def _rows(rows: tuple[Judgement, ...]) -> Iterator[str]:
    for row in rows:
        for field in row.fields:
            effect = cell(prose(row.effect))
            yield f"| `{field}` | {row.verdict.value} | {cell(_code(row.source))} | {effect} |"


def _code(source: str) -> str:
    """Commands, keys and codes of findings as code."""
    if not source or source == "all that list":
        return source
    return f"`{source}`"
