"""What one rank is to do, and where its result lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar


@dataclass(frozen=True)
class Assignment:
    """One phase of one rank. `threads`: cores of this rank; `tag` names the files of this start."""

    phase: str
    size: str
    mode: str
    rank: int
    world: int
    threads: int
    repeat: int
    directory: str
    tag: str

    @property
    def result_path(self) -> Path:
        return Path(self.directory) / f"{self.tag}-{self.rank}.json"

    @property
    def log_path(self) -> Path:
        return Path(self.directory) / f"{self.tag}-{self.rank}.log"

    @property
    def rendezvous_path(self) -> Path:
        """Return the file through which the ranks of this start meet."""
        return Path(self.directory) / f"{self.tag}-meeting"


AnyAssignment = TypeVar("AnyAssignment", bound=Assignment)
