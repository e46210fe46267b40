"""A bundle as it lies on a node, without running its entry script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hyperpod_kit.bundle.render import Bundle, replace_bundle_directory


def install(bundle: Bundle, directory: Path) -> None:
    """Write what on_create.sh would have installed to `directory`."""
    replace_bundle_directory(replace(bundle, files=bundle.installed_files), directory)
