"""What a kind of mount must know about itself.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple

from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.system.mountinfo import MountEntry


@dataclass(frozen=True)
class MountIdentity:
    """Whether what is mounted is what was asked for. `matches`: None when that cannot be told.

    source: what is mounted, in the words of its kind; endpoint_is_dead: what `Kind.endpoint_is_dead` said of a mount
    that did not answer.
    """

    matches: Optional[bool]
    source: str
    detail: str = ""
    endpoint_is_dead: bool = False


@dataclass(frozen=True)
class ClientCheck:
    """How to tell that a client will do. `minimum`: the version from which on, "" when every one will;
    version_arguments: arguments with which the program says its version, () when that is not asked; module: the kernel
    module that must fit."""

    minimum: str = ""
    version_arguments: Tuple[str, ...] = ()
    module: str = ""


class Kind(ABC):
    """One kind of mount; `mount` is the dataclass of that kind. Nothing here does I/O on the mount itself.

    A kind that leaves one of the next four open is a TypeError at its import.
    """

    program: str
    """The program without which nothing can be mounted."""

    package: str
    """Where `program` comes from, for a person."""

    client_check: ClientCheck

    restart_when_hung: bool
    """Whether a hung endpoint may be killed: only where a process of ours on this node is what hangs."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        missing = [attribute for attribute in Kind.__annotations__ if not hasattr(cls, attribute)]
        if missing:
            raise TypeError(f"{cls.__name__} lacks {', '.join(missing)}")

    @abstractmethod
    def mount_command(self, node: Node, mount: Any) -> Sequence[str]:
        """Return the command that makes the mount, run as root: the only source of its options, for the first
        mount and every later."""

    @abstractmethod
    def identify(self, node: Node, mount: Any, entry: MountEntry) -> MountIdentity:
        """Tell which file system `entry` is, and whether it is the configured one, from the kernel's line and from
        what its helper left beside it."""

    def prepare(self, node: Node, mount: Any) -> None:
        """Make what `command` needs besides the mount point. Raises MountFailed."""
        return None

    def endpoint_is_dead(self, node: Node, mount: Any, entry: MountEntry) -> bool:
        """Return whether what serves a mount that does not answer is dead, and no waiting brings it back."""
        return False
