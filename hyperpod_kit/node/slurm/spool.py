"""Whether slurmd's spool directory can store a job's batch script.

On a full or read-only disk it cannot. Slurm then holds the job (`launch failed requeued held`) until somebody releases
it, leaves the node idle, and gives it the next job (seen with 22.05).

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import os
from functools import partial

from hyperpod_kit.errors import NodeError
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_volatile
from hyperpod_kit.node.slurm.hooks import parse_slurm_conf_settings
from hyperpod_kit.system.bounded_child import call_in_child
from hyperpod_kit.untrusted import by_descriptor

SPOOL_REASON = "hyperpod-kit:spool:unusable"
"""Slurm's reason for a node that is drained for its spool directory."""

SPOOL_REASON_OF_SLURM = "SlurmdSpoolDir is full"
"""With which Slurm drains a node itself once slurmd cannot save its state there (seen with 22.05 and 24.11). Slurm does
not undrain it."""

DEFAULT_DIRECTORY = "/var/spool/slurmd"

PROBE_BYTES = 64 << 10
"""Of a batch script with its environment; Slurm accepts 4 MiB."""

PROBE_SECONDS = 3.0

UNUSABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of a write after which slurmd cannot store a batch script either."""


def spool_failure(node: Node) -> str:
    """Return why slurmd's spool directory cannot store a batch script, in one line; "" when it can.

    It is also "" where that is not known: no such directory, a disk that does not respond in time.
    """
    directory = spool_directory(node)
    path = node.paths.under_root(directory)
    if not os.path.isdir(path):
        return ""
    try:
        code = call_in_child(directory, partial(_write_probe, f"{path}/hyperpod-kit-probe"), PROBE_SECONDS)
    except NodeError:
        return ""
    if code not in UNUSABLE:
        return ""
    return f"slurmd cannot store a job in its spool directory {directory}: {os.strerror(code)}"


def spool_directory(node: Node) -> str:
    """Return slurmd's spool directory on this node (SlurmdSpoolDir)."""
    # Configless, slurmd goes by the file that it has fetched.
    text = read_text(node.paths.fetched_slurm_conf) or read_text(node.paths.slurm_conf) or ""
    directory = parse_slurm_conf_settings(text).get("slurmdspooldir", "").strip('"') or DEFAULT_DIRECTORY
    for symbol in ("%n", "%h"):
        directory = directory.replace(symbol, node.facts.node)
    return directory


def _write_probe(path: str) -> int:
    """Write a file of a batch script's size and delete it; return the errno of the write, 0 when it succeeded."""
    try:
        write_volatile(path, "0" * PROBE_BYTES, 0o600)
    except OSError as err:
        return err.errno or errno.EIO
    finally:
        with contextlib.suppress(OSError):
            by_descriptor.unlink(path)
    return 0
