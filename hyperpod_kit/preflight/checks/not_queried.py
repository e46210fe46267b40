"""What could not be asked is said, each question once."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.preflight.facts import AccountFacts


def check_all_queried(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Warn once for each query that failed: the caller's role has no permission, or nobody answered."""
    for missing in facts.not_queried:
        if missing.denied:
            yield Finding(
                "HPK-V001",
                missing.path,
                f"not checked: {missing.what} ({missing.reason})",
                f"Allow {facts.caller.arn} the action {missing.action}, which is read-only",
                WARNING,
            )
        else:
            yield Finding(
                "HPK-V002",
                missing.path,
                f"not checked: {missing.what} ({missing.reason})",
                "Run the same command again",
                WARNING,
            )
