"""The findings of the rules of `job lint`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LintFinding:
    """One finding. severity: `error` (the job will not come back), `warning` (it will lose more than it must)."""

    code: str
    severity: str
    line: int
    message: str
    hint: str

    def render(self, file: str) -> str:
        """Return the finding about a script as a line."""
        return f"{file}:{self.line}: {self.severity} {self.code}: {self.message}. {self.hint}"
