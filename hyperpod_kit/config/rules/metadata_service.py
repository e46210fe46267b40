"""Who may use the nodes' metadata service."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.rules.users import USER_NAME
from hyperpod_kit.config.settings import Settings

AT = "hyperpod_kit.metadata_service"


def users(settings: Settings) -> Iterator[Finding]:
    """They are names of accounts, each once; root needs no mention."""
    seen: set[str] = set()
    for index, name in enumerate(settings.metadata_users or ()):
        if not USER_NAME.fullmatch(name) or name == "root":
            yield Finding(
                "HPK-I001",
                f"{AT}.users[{index}]",
                f"`{name}` is not the name of a user that this could be said of",
                "Name accounts other than root, which always may",
            )
        elif name in seen:
            yield Finding("HPK-I002", f"{AT}.users[{index}]", f"`{name}` is listed already", "Keep one")
        seen.add(name)
