"""Who may use the nodes' metadata service."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.fields.fields import fits_field_pattern_if_any
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.settings import Settings

AT = "hyperpod_kit.metadata_service"


def check_users_unique(settings: Settings) -> Iterator[Finding]:
    """Each is named once."""
    earlier_names: set[str] = set()
    for index, name in enumerate(settings.metadata_users or ()):
        if name in earlier_names and fits_field_pattern_if_any(f"{AT}.users", name):
            yield Finding("HPK-I002", f"{AT}.users[{index}]", f"`{name}` is listed already", "Keep one")
        earlier_names.add(name)
