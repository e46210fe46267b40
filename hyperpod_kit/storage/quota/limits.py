"""Limits and what is used of them; nothing here asks a file system."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.system import fullness

WEEK = 7 * 86400


class QuotaError(HyperpodKitError):
    """A quota cannot be set or shown."""


@dataclass(frozen=True)
class QuotaLimits:
    """Limits of bytes and of files: `soft` may be passed for the time of grace, `hard` never; 0: no limit."""

    soft_bytes: int = 0
    hard_bytes: int = 0
    soft_files: int = 0
    hard_files: int = 0

    def __post_init__(self) -> None:
        for name, soft, hard in (
            ("bytes", self.soft_bytes, self.hard_bytes),
            ("files", self.soft_files, self.hard_files),
        ):
            if min(soft, hard) < 0 or (hard and soft > hard):
                raise QuotaError(
                    f"the soft limit of {name} is {soft:,} and the hard one {hard:,}: expected 0 <= soft <= hard"
                )


@dataclass(frozen=True)
class QuotaUsed:
    """What one directory uses.

    `files`: None where the file system does not count them. `grace`: what is left of it in the file system's own
    words, empty when no soft limit is passed. `root_is_free`: no limit holds root.
    """

    directory: str
    bytes: int
    files: int | None
    limits: QuotaLimits
    grace: str = ""
    root_is_free: bool = True

    @property
    def share(self) -> float:
        """Compute the larger of the shares of the limits that are used, of the hard one where there are both; 0
        without."""
        limits = self.limits
        pairs = (
            (self.bytes, limits.hard_bytes or limits.soft_bytes),
            (self.files or 0, limits.hard_files or limits.soft_files),
        )
        return max((used / limit for used, limit in pairs if limit), default=0.0)

    @property
    def is_nearly_full(self) -> bool:
        """Whether it is nearly full, where no earlier check counts."""
        return fullness.is_nearly_full(self.share, False)

    def to_json(self) -> dict[str, Any]:
        """Return its JSON form: bytes, files and the share, 0 to 1 and beyond."""
        return {**asdict(self), "share": self.share}


class QuotaBackend(Protocol):
    """What a kind of file system can do about a directory."""

    name: str
    counts_files: bool

    def read_usage(self, directory: str) -> QuotaUsed:
        """Read usage and limits. Raises QuotaError, RunError."""

    def build_limit_commands(self, directory: str, limits: QuotaLimits, grace: int) -> list[list[str]]:
        """Build the commands that `set` runs, in this order; `grace`: seconds, or 0 for as it is.

        Raises QuotaError where it cannot be.
        """
