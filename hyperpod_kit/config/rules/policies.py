"""Times and counts of the mount watch."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.settings import Settings

AT = "hyperpod_kit.health"


def health(settings: Settings) -> Iterator[Finding]:
    """A probe ends before the next one begins, and giving up takes at least one failure."""
    policy = settings.health
    if policy.interval < 5:
        yield Finding("HPK-H001", f"{AT}.interval", f"{policy.interval:g} s between checks", "Use 5 s or more")
    if not 0 < policy.deadline < policy.interval:
        yield Finding(
            "HPK-H002",
            f"{AT}.deadline",
            f"a probe may take {policy.deadline:g} s and one begins every {policy.interval:g} s",
            "Make deadline positive and shorter than interval",
        )
    if policy.give_up_after < 1:
        yield Finding("HPK-H003", f"{AT}.give_up_after", f"{policy.give_up_after} failures", "Use 1 or more")
    if settings.failure_pause < 0:
        yield Finding(
            "HPK-H004",
            "hyperpod_kit.failure_pause",
            f"{settings.failure_pause:g} s is negative",
            "Use 60, or 0 for no pause",
        )
