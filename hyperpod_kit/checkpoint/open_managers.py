"""The Managers that are open in this process: one for a root, none in a forked child, none at work at the end.

A thread of ours that is inside torch when the interpreter ends takes the whole process down with SIGABRT (its stack is
unwound through C++). A child that was forked has copies of the agent's socket and of the slots, and would keep both.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import weakref
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

    def close(self) -> bool:
        """End it normally."""

    def rest(self) -> None:
        """Let no thread be in torch any more, within some seconds."""

    def leave_to_parent(self) -> None:
        """This process is a forked child: the agent is not its own."""


log = logging.getLogger("hyperpod_kit.checkpoint")

_open: list[weakref.ref[OpenedManager]] = []
_entered: set[int] = set()
"""The ids of those that are open: a reference may be gone before its object is."""
_forgotten: list[OpenedManager] = []
"""Open ones that the program has no name for any more: their saves go on, and nobody can close them."""


def manager_of(root: str) -> OpenedManager | None:
    """The Manager of this root in this process that still has its agent."""
    return next(
        (manager for manager in _all() if manager.protects and _real_root(manager.root) == _real_root(root)), None
    )


def enter(manager: OpenedManager) -> None:
    """This Manager is open from now on."""
    _open.append(weakref.ref(manager))
    _entered.add(id(manager))


def leave(manager: OpenedManager) -> None:
    """It is not any more."""
    _entered.discard(id(manager))
    _open[:] = [ref for ref in _open if ref() not in (None, manager)]
    _forgotten[:] = [other for other in _forgotten if other is not manager]


def forget(manager: OpenedManager) -> None:
    """The program has lost this open Manager, as a notebook does whose cell is run again."""
    if id(manager) in _entered:
        _forgotten.append(manager)


def close_forgotten(root: str) -> None:
    """Close what the program has forgotten, before another Manager of the root is made."""
    if manager_of(root) is None:
        return
    gc.collect()  # it may lie in a ring of objects
    for manager in [other for other in _forgotten if _real_root(other.root) == _real_root(root)]:
        log.warning("a Manager of %s was never closed, and the program has lost it: it is closed now", root)
        manager.close()


def _all() -> list[OpenedManager]:
    return [manager for manager in (ref() for ref in _open) if manager is not None] + _forgotten


def _real_root(root: str) -> str:
    if "://" in root:
        return root
    return os.path.realpath(root)


def _at_end() -> None:
    for manager in _all():
        manager.rest()


def _in_child() -> None:
    managers = _all()
    _open.clear()
    _entered.clear()
    _forgotten.clear()
    for manager in managers:
        manager.leave_to_parent()
    mapping.leave_to_parent()


atexit.register(_at_end)
os.register_at_fork(after_in_child=_in_child)
