"""The Managers that are open in this process: one for a root, none in a forked child, none at work at the end.

A thread of ours that is inside torch when the interpreter ends takes the whole process down with SIGABRT (its stack is
unwound through C++). A child that was forked has copies of the agent's socket and of the slots, and would keep both.
"""

from __future__ import annotations

import atexit
import os
from typing import Protocol

from hyperpod_kit.checkpoint.repository import mapping


class OpenedManager(Protocol):
    """What is asked of a Manager here."""

    @property
    def root(self) -> str:
        """Where its checkpoints lie."""

    @property
    def protects(self) -> bool:
        """Whether its agent serves it."""

    def rest(self) -> None:
        """Let no thread be in torch any more, within some seconds."""

    def leave_to_parent(self) -> None:
        """This process is a forked child: the agent is not its own."""


_open: list[OpenedManager] = []


def holder(root: str) -> OpenedManager | None:
    """The Manager of this root in this process that still has its agent."""
    return next((one for one in _open if one.protects and _place(one.root) == _place(root)), None)


def enter(manager: OpenedManager) -> None:
    """This Manager is open from now on."""
    _open.append(manager)


def leave(manager: OpenedManager) -> None:
    """It is not any more."""
    _open[:] = [one for one in _open if one is not manager]


def _place(root: str) -> str:
    return root if "://" in root else os.path.realpath(root)


def _at_end() -> None:
    for manager in list(_open):
        manager.rest()


def _in_child() -> None:
    managers = list(_open)
    _open.clear()
    for manager in managers:
        manager.leave_to_parent()
    mapping.leave_to_parent()


atexit.register(_at_end)
os.register_at_fork(after_in_child=_in_child)
