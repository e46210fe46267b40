"""The toy filer: its keys and its rule."""

from __future__ import annotations

import re
from typing import Iterator

from hyperpod_kit.model.mounts.toy import ToyMount

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.mounts.form import MountForm
from hyperpod_kit.config.settings import Settings


def volumes(settings: Settings) -> Iterator[Finding]:
    """Volumes are numbered."""
    for mount, place in settings.written(ToyMount):
        if not re.fullmatch(r"vol[0-9]+", mount.volume):
            yield Finding("HPK-T001", f"{place}.volume", f"`{mount.volume}` is no volume", "Write it like vol0")


KIND = MountForm(
    fields={"server": "Host name of the filer.", "volume": "Which of its volumes."},
    nicknames=("filer",),
    short_form=None,
    storage_config=None,
    rules=(volumes,),
)
