"""Which storage torch's tests get: its own, or ours under the names of its own. In the process of a test file only."""

from __future__ import annotations

import importlib
import os
from typing import Any

_NAMES = {
    "torch.distributed.checkpoint": "FileSystem",
    "torch.distributed.checkpoint.filesystem": "FileSystem",
    "torch.distributed.checkpoint._storage_utils": "FileSystem",
    "torch.distributed.checkpoint.format_utils": "FileSystem",
    "torch.distributed.checkpoint._fsspec_filesystem": "Fsspec",
}
"""Where torch has its reader and writer, and how their names begin there."""


def choose(mode: str) -> None:
    """`ours`: our reader and writer in the place of torch's."""
    if mode != "ours":
        return
    kinds = {prefix: _kinds() for prefix in set(_NAMES.values())}  # torch asks one after the other
    for module, prefix in [(importlib.import_module(name), prefix) for name, prefix in _NAMES.items()]:
        writer, reader = kinds[prefix]
        setattr(module, f"{prefix}Writer", writer)
        setattr(module, f"{prefix}Reader", reader)


def _kinds() -> tuple[type, type]:
    from hyperpod_kit.checkpoint.dcp.reader import Reader
    from hyperpod_kit.checkpoint.dcp.writer import Writer

    class OurWriter(Writer):
        """What torch's constructor takes beside the path says how its own files are laid out: nothing here."""

        def __init__(self, path: str | os.PathLike[str], *_: Any, **__: Any) -> None:
            super().__init__(path, step=0)

    class OurReader(Reader):
        def __init__(self, path: str | os.PathLike[str], *_: Any, **__: Any) -> None:
            super().__init__(path)

    return OurWriter, OurReader
