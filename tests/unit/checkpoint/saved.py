"""A state saved by one Manager and restored by another, in one process."""

from __future__ import annotations

from typing import Any

from hyperpod_kit.checkpoint import Fresh, Manager, Restored


def save(root: str, state: Any, step: int = 0) -> None:
    """Until it is durable."""
    manager = Manager(root)
    try:
        manager.restore(state)
        assert manager.save(step, state).wait("durable", 60)
    finally:
        assert manager.close()


def restore(root: str, state: Any) -> Restored | Fresh:
    manager = Manager(root)
    try:
        return manager.restore(state)
    finally:
        manager.close()
