"""Who is told, and when: once when 80 % is passed, and again only after it was below 75 %."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Mapping

from hyperpod_kit.storage.quota.limits import QuotaUsed
from hyperpod_kit.system.fullness import nearly_full


@dataclass(frozen=True)
class QuotaAlert:
    """One directory, which its owner and the admin are told of. `to`: mail addresses."""

    used: QuotaUsed
    to: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """For every sink."""
        used, limits = self.used, self.used.limits
        room, files = limits.hard_bytes or limits.soft_bytes, limits.hard_files or limits.soft_files
        parts = [f"{used.bytes:,} of {room:,} bytes"] if room else []
        if files and used.files is not None:
            parts.append(f"{used.files:,} of {files:,} files")
        grace = f" (grace: {used.grace})" if used.grace else ""
        return (
            f"{used.directory} is {used.share:.1%} full: {', '.join(parts)}{grace}. At the limit nothing can be "
            f"written, no checkpoint either. What fills it, and what may be deleted: "
            f"hyperpod-kit storage usage {used.directory}"
        )


def next_state(above: Iterable[str], shares: Mapping[str, float]) -> tuple[set[str], set[str]]:
    """(directories that are above now, those of them that were not before).

    A directory that could not be asked (it is not in `shares`) stays what it was.
    """
    before = set(above)
    now = {name for name in before - shares.keys()} | {
        name for name, share in shares.items() if nearly_full(share, name in before)
    }
    return now, now - before
