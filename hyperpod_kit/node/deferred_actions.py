"""Work that must follow a change of a file, noted on disk: who made the change may be killed before it does the work.

    deferred_actions.note(node, "slurm-reconfigure")       before the file changes
    deferred_actions.complete(node, "slurm-reconfigure")   after the daemon has read it

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os

from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import write_if_different
from hyperpod_kit.untrusted import by_descriptor


def note(node: Node, what: str) -> None:
    write_if_different(node.paths.deferred_action(what), "")


def is_noted(node: Node, what: str) -> bool:
    return os.path.exists(node.paths.deferred_action(what))


def complete(node: Node, what: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        by_descriptor.unlink(node.paths.deferred_action(what))
