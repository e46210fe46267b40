"""What a file of a bundle must be to arrive on a node as it left: its name, its line ends, its first line."""

from __future__ import annotations

import re

from hyperpod_kit.errors import BundleError

PATH_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+~-]*(/[A-Za-z0-9_][A-Za-z0-9._@+~-]*)*")
"""Names that an S3 key, a URL, a shell and `sha256sum -c` all read the same way, and nothing hidden."""

INTERPRETERS = (b"#!/bin/bash\n", b"#!/bin/sh\n", b"#!/usr/bin/env python3\n", b"#!/usr/bin/python3\n")
"""First lines that start on every node."""

FOREIGN_DIRECTORIES = ("packages/", "scripts/")
"""Below them lie files as their authors made them: nothing is said about their bytes."""


ARCHIVES = (".whl",)
"""No text: whatever bytes it has are right."""


def require_bundle_file_fit_for_nodes(path: str, data: bytes) -> None:
    """Raise BundleError when this file would not arrive, or not start, on a node."""
    if not PATH_PATTERN.fullmatch(path):
        raise BundleError(
            f"{path!r} cannot be the name of a file of a bundle", hint="use letters, digits and ._@+~- between slashes"
        )
    if path.startswith(FOREIGN_DIRECTORIES) or path.endswith(ARCHIVES):
        return
    if b"\r" in data:
        raise BundleError(
            f"{path} has Windows line ends, with which no script starts on a node",
            hint=f"dos2unix the source of {path}",
        )
    first = data[: data.find(b"\n") + 1]
    if data.startswith(b"#!") and first not in INTERPRETERS:
        raise BundleError(f"{path} begins with {first!r}, which not every node can start")
    if path.endswith(".sh") and not data.startswith(b"#!"):
        raise BundleError(f"{path} does not begin with #!, so HyperPod could not start it")
    if path.endswith((".sh", ".service", ".timer", ".mount")) and not data.endswith(b"\n"):
        raise BundleError(f"the last line of {path} has no newline", hint="end it with a newline")
