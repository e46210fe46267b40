"""A finding: one thing that is wrong with a configuration, with a stable code, its place and a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

LONGEST = 300
"""Characters of a message that people see; the JSON form has all."""

ERROR = "error"
WARNING = "warning"
INFO = "info"
SEVERITIES = (INFO, WARNING, ERROR)
"""From the least to the worst."""


@dataclass(frozen=True)
class Finding:
    """What is wrong at one place of the configuration, and what to do about it.

    `path`: like `hyperpod_kit.mounts[1].bucket`. `line`, `column`: in the file, from 1; 0 when there is no place.
    """

    code: str
    path: str
    message: str
    hint: str
    severity: str = ERROR
    line: int = 0
    column: int = 0

    def render(self) -> str:
        """Format the finding in one line for a person: where, what, what to do."""
        where = self.path
        if self.line:
            where = f"{self.path} (line {self.line}, column {self.column})"
        message, hint = _escaped_and_shortened(self.message), _escaped_and_shortened(self.hint)
        return f"{self.severity} {self.code} {_escaped_and_shortened(where)}: {message}. {hint}"


def select_errors(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings of severity error."""
    return [finding for finding in findings if finding.severity == ERROR]


def select_at_least(findings: Sequence[Finding], severity: str) -> list[Finding]:
    """Select the findings that are as bad as `severity` or worse."""
    return [finding for finding in findings if SEVERITIES.index(finding.severity) >= SEVERITIES.index(severity)]


def is_key_path_at_or_inside(path: str, parent: str) -> bool:
    """Whether `path` is `parent` or something inside it."""
    return path == parent or path.startswith((parent + ".", parent + "["))


def _escaped_and_shortened(text: str) -> str:
    """Shorten a text to one line that a terminal takes as text, whatever somebody wrote into the file."""
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    if len(shown) <= LONGEST:
        return shown
    return f"{shown[: LONGEST - 40]}… ({len(text)} characters)"
