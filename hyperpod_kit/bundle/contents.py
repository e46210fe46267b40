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

import os
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
        for path in list_shipped_files(sources.package / package):
            if path.endswith(".py"):
                yield f"lib/hyperpod_kit/{package}/{path}", sources.package / package / path
    for path in list_shipped_files(sources.slurm):
        yield f"slurm/{path}", sources.slurm / path


def list_shipped_files(tree: Path) -> list[str]:
    """Return the paths of the files that ship, relative to `tree` and with slashes, sorted part by part: those that are
    not hidden, and not left by a compiler or an editor.

    Texts and no Paths: of a thousand files, each a Path of its own is a tenth of a second.
    """
    top = str(tree)
    paths: list[str] = []
    for directory, subdirectories, names in os.walk(top):
        subdirectories[:] = [name for name in subdirectories if not _is_hidden(name)]
        shipped = [name for name in names if not _is_hidden(name) and not name.endswith(LEFT_OUT_SUFFIXES)]
        files = [f"{directory}/{name}" for name in shipped if os.path.isfile(f"{directory}/{name}")]
        paths += [file[len(top) + 1 :] for file in files]
    return sorted(paths, key=lambda path: path.split("/"))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _require_file(path: Path) -> Path:
    if not path.is_file():
        raise BundleError(
            f"the bundle needs {path}, which does not exist", hint="install hyperpod-kit again, or restore the file"
        )
    return path
