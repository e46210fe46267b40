"""The formats of other programs by their names: a file in `convert/formats` is one, under the file's name."""

from __future__ import annotations

import importlib
import pkgutil

from hyperpod_kit.checkpoint.convert import formats
from hyperpod_kit.checkpoint.convert.files.foreign_format import ForeignFormat


def load_formats() -> dict[str, ForeignFormat]:
    """Return `FORMAT` of each file. Raise TypeError for a file that has none."""
    found: dict[str, ForeignFormat] = {}
    for module in pkgutil.iter_modules(formats.__path__):
        name = f"{formats.__name__}.{module.name}"
        candidate = getattr(importlib.import_module(name), "FORMAT", None)
        if not isinstance(candidate, ForeignFormat):
            raise TypeError(f"{name}.FORMAT is a {type(candidate).__name__}, expected a ForeignFormat")
        found[module.name] = candidate
    return found
