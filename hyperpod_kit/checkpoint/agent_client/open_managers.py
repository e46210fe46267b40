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

from hyperpod_kit.checkpoint.repository.read import mapping


class OpenedManager(Protocol):
    """What is asked of a Manager here."""

    @property
    def root(self) -> str:
        """Where its checkpoints lie."""

    @property
    def protects(self) -> bool:
        """Return whether the Manager is open and its agent has not ended."""

    def close(self) -> bool:
        """End it normally."""

    def rest(self) -> None:
        """Wait, some seconds at most, until no thread of the Manager is inside torch."""

    def leave_to_parent(self) -> None:
        """Close what a forked child has inherited: the agent belongs to the parent."""


log = logging.getLogger("hyperpod_kit.checkpoint")

_open: list[weakref.ref[OpenedManager]] = []
_entered: set[int] = set()
"""The ids of those that are open: a reference may be gone before its object is."""
_forgotten: list[OpenedManager] = []
"""Open ones that the program has no name for any more: their saves go on, and nobody can close them."""


def manager_with_live_agent(root: str) -> OpenedManager | None:
    """Return this process's Manager of the root that still has its agent; None where there is none."""
    return next(
        (
            manager
            for manager in _open_and_forgotten_managers()
            if manager.protects and _real_root(manager.root) == _real_root(root)
        ),
        None,
    )


def register_manager(manager: OpenedManager) -> None:
    """Register a Manager as open."""
    _open.append(weakref.ref(manager))
    _entered.add(id(manager))


def unregister_manager(manager: OpenedManager) -> None:
    """Remove a Manager from the open and the forgotten ones."""
    _entered.discard(id(manager))
    _open[:] = [ref for ref in _open if ref() not in (None, manager)]
    _forgotten[:] = [other for other in _forgotten if other is not manager]


def retain_forgotten(manager: OpenedManager) -> None:
    """Keep an open Manager alive that the program has lost, as a notebook does whose cell is run
    again, until it is closed."""
    if id(manager) in _entered:
        _forgotten.append(manager)


def close_forgotten(root: str) -> None:
    """Close the Managers of the root that the program has lost, before another one is made."""
    if manager_with_live_agent(root) is None:
        return
    gc.collect()  # it may lie in a ring of objects
    for manager in [other for other in _forgotten if _real_root(other.root) == _real_root(root)]:
        log.warning("a Manager of %s was garbage-collected before close(): closing it now", root)
        manager.close()


def _open_and_forgotten_managers() -> list[OpenedManager]:
    return [manager for manager in (ref() for ref in _open) if manager is not None] + _forgotten


def _real_root(root: str) -> str:
    if "://" in root:
        return root
    return os.path.realpath(root)


def _stop_threads_at_exit() -> None:
    for manager in _open_and_forgotten_managers():
        manager.rest()


def _release_in_forked_child() -> None:
    managers = _open_and_forgotten_managers()
    _open.clear()
    _entered.clear()
    _forgotten.clear()
    for manager in managers:
        manager.leave_to_parent()
    mapping.drop_mappings_after_fork()


atexit.register(_stop_threads_at_exit)
os.register_at_fork(after_in_child=_release_in_forked_child)
