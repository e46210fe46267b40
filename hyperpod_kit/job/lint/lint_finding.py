"""What the rules of `job lint` say."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict


@dataclass(frozen=True)
class LintFinding:
    """One thing. severity: `error` (it will not come back), `warning` (it will lose more than it must)."""

    code: str
    severity: str
    line: int
    message: str
    hint: str

    def render(self, file: str) -> str:
        return f"{file}:{self.line}: {self.severity} {self.code}: {self.message}. {self.hint}"

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)
