"""What ships to the nodes: this list is the bundle. Names that others call by are in doors.py.

on_create.sh on_init_complete.sh lifecycle_script.py     what HyperPod starts
bin/hyperpod-kit                                         the program
lib.tar.gz  lib.tar.sha256                               the next three as one object, and the digest of its tar
  lib/__main__.py                                        what the program starts
  lib/hyperpod_kit/…                                     VENDORED, standard library only
  lib/hyperpod_kit-….whl                                 the whole package, for jobs' environments (wheel.py)
slurm/…                                                  what Slurm starts
units/<unit>  node_config.json                           rendered from the configuration
packages/…  scripts/…  training_environment/…            files that the configuration names
provisioning_parameters.json                             on_create mode only
SHA256SUMS  bundle.json                                  written last
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

from hyperpod_kit.bundle.sources import Sources
from hyperpod_kit.errors import BundleError

ENTRY_SCRIPTS = ("on_create.sh", "on_init_complete.sh", "lifecycle_script.py")

PROGRAM = {"bin/hyperpod-kit": "hyperpod-kit.sh", "lib/__main__.py": "node_main.py"}
"""Place in the bundle -> file of lifecycle_scripts/."""

VENDORED_FILES = (
    "__init__.py",
    "audit.py",
    "descriptors.py",
    "ending.py",
    "environment.py",
    "errors.py",
    "exit_codes.py",
    "renamed.py",
    "run.py",
    "version.py",
    "checkpoint/__init__.py",
)
VENDORED_PACKAGES = (
    "command_line",
    "untrusted",
    "system",
    "signing",
    "s3",
    "model",
    "slurm",
    "node",
    "job",
    "checkpoint/repository",
    "checkpoint/agent",
    "checkpoint/commands",
)
"""The part of hyperpod_kit that nodes run; tests/test_architecture.py holds it to the standard library."""

LEFT_OUT_SUFFIXES = (".pyc", ".pyo", ".o", ".so", ".swp", ".orig", ".rej", "~")
"""What compilers and editors leave behind."""


def list_copied_sources(sources: Sources) -> Iterator[tuple[str, Path]]:
    """Yield (path in the bundle, source file) of everything that ships as it is.

    Raises BundleError when a source is missing.
    """
    for name in ENTRY_SCRIPTS:
        yield name, _require_file(sources.lifecycle_scripts / name)
    for target, name in PROGRAM.items():
        yield target, _require_file(sources.lifecycle_scripts / name)
    for name in VENDORED_FILES:
        yield f"lib/hyperpod_kit/{name}", _require_file(sources.package / name)
    for package in VENDORED_PACKAGES:
        _require_file(sources.package / package / "__init__.py")
        for file in _shipped_files(sources.package / package):
            if file.suffix == ".py":
                yield f"lib/hyperpod_kit/{file.relative_to(sources.package).as_posix()}", file
    for file in _shipped_files(sources.slurm):
        yield f"slurm/{file.relative_to(sources.slurm).as_posix()}", file


def is_shipped_source(path: Path, tree: Path) -> bool:
    """Return whether a path below `tree` is a file that ships: not hidden, and not left by a compiler or
    an editor."""
    hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(tree).parts)
    return not hidden and not path.name.endswith(LEFT_OUT_SUFFIXES) and path.is_file()


def _shipped_files(tree: Path) -> Iterator[Path]:
    return (path for path in sorted(tree.rglob("*")) if is_shipped_source(path, tree))


def _require_file(path: Path) -> Path:
    if not path.is_file():
        raise BundleError(
            f"the bundle needs {path}, which is not there", hint="install hyperpod-kit again, or restore the file"
        )
    return path
