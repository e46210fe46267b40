"""The packages of the three distributions of this repository and their tests, for tests that read sources."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator, Tuple

CHECKOUT = Path(__file__).resolve().parents[2]
PRODUCT = "hyperpod_kit"
PACKAGES: Dict[str, Path] = {
    PRODUCT: CHECKOUT / "hyperpod_kit",
    "hyperpod_rehearsal": CHECKOUT / "rehearsal/hyperpod_rehearsal",
    "hyperpod_lab": CHECKOUT / "lab/hyperpod_lab",
}
TESTS: Tuple[Path, ...] = (CHECKOUT / "tests", CHECKOUT / "rehearsal/rehearsal_tests", CHECKOUT / "lab/lab_tests")
"""A package each, of a name of its own: a checkout may have the directories of all three on the path."""


def modules() -> Iterator[Path]:
    """Of all three distributions."""
    for package in PACKAGES.values():
        for path in sorted(package.rglob("*.py")):
            if "_bundle" not in path.parts:
                yield path


def package_of(path: Path) -> str:
    """The name of the package that a file is in. Raises StopIteration for a file of none."""
    return next(name for name, package in PACKAGES.items() if package in path.parents)


def relative(path: Path) -> str:
    """`system/process.py` of hyperpod_kit, `hyperpod_lab/rows.py` of another distribution."""
    package = package_of(path)
    return str(path.relative_to(PACKAGES[package] if package == PRODUCT else PACKAGES[package].parent))


def located(name: str) -> Path:
    """The path of what `relative` calls `name`."""
    other = PACKAGES.get(name.partition("/")[0])
    return PACKAGES[PRODUCT] / name if other is None else other.parent / name
