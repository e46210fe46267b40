"""The toy filer: its keys."""

from __future__ import annotations

from hyperpod_kit.config.mounts.form import MountForm
from hyperpod_kit.config.settings.field import Field
from hyperpod_kit.config.settings.patterns import Pattern

VOLUME = Pattern("HPK-T001", r"vol[0-9]+", "`{value}` is no volume", "Write it like vol0")

KIND = MountForm(
    fields={"server": Field("Host name of the filer."), "volume": Field("Which of its volumes.", pattern=VOLUME)},
    nicknames=("filer",),
    short_form=None,
    storage_config=None,
    rules=(),
)
