"""Where the bundle's sources lie: beside the package in a checkout, under `_bundle/` in an installed wheel."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hyperpod_kit
from hyperpod_kit.errors import BundleError

TREES = ("lifecycle_scripts", "templates", "slurm")
EXAMPLE = "provisioning_parameters.example.json"
LICENSE = "LICENSE"


@dataclass(frozen=True)
class Sources:
    """`root` holds the three trees, the example and the license, `package` is the directory of hyperpod_kit itself."""

    root: Path
    package: Path

    @property
    def lifecycle_scripts(self) -> Path:
        """Return the scripts that HyperPod starts, and the program's entry point."""
        return self.root / "lifecycle_scripts"

    @property
    def templates(self) -> Path:
        """Return the templates that are rendered on the admin's machine."""
        return self.root / "templates"

    @property
    def slurm(self) -> Path:
        """Return the scripts that Slurm itself runs."""
        return self.root / "slurm"


def locate_sources() -> Sources:
    """Return the sources that belong to the imported package.

    Raises BundleError when a tree is missing.
    """
    package = Path(hyperpod_kit.__file__).resolve().parent
    for root in (package / "_bundle", package.parent):
        if (root / "lifecycle_scripts").is_dir():
            missing = [tree for tree in TREES if not (root / tree).is_dir()]
            if missing:
                raise BundleError(f"{root} has no {', '.join(missing)}", hint="install hyperpod-kit again")
            return Sources(root, package)
    raise BundleError(
        f"the bundle's sources are neither in {package}/_bundle nor beside {package}",
        hint="install hyperpod-kit again, or run it from its checkout",
    )


def read_example_configuration() -> dict[str, Any]:
    """The example configuration. Raises BundleError when it is missing."""
    path = locate_sources().root / EXAMPLE
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"there is no example at {path}", hint="install hyperpod-kit again") from None
    return values
