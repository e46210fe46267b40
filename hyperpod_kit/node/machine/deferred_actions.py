"""Work that must follow a change of a file, noted on disk: who made the change may be killed before it does the work.

    deferred_actions.record_action(node, "slurm-reconfigure")       before the file changes
    deferred_actions.delete_action_record(node, "slurm-reconfigure")   after the daemon has read it

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os

from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import write_if_different
from hyperpod_kit.untrusted import by_descriptor


def record_action(node: Node, action_name: str) -> None:
    write_if_different(node.paths.deferred_action(action_name), "")


def is_recorded(node: Node, action_name: str) -> bool:
    return os.path.exists(node.paths.deferred_action(action_name))


def delete_action_record(node: Node, action_name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        by_descriptor.unlink(node.paths.deferred_action(action_name))
