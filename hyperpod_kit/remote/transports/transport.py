"""The ways to a node's report: what each hands over, whatever it took to get it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional, Protocol, Sequence

from hyperpod_kit.remote.target import NodeTarget

COMMAND = ("/opt/hyperpod-kit/current/bin/hyperpod-kit", "node", "mounts", "--json")
"""The look that every node takes at its own mounts; the program of any bundle has it."""

LONGEST_REPORT = 256 << 10
"""Bytes of output of one node that are too many to be a report."""


@dataclass(frozen=True)
class NodeResponse:
    """What came from one node: the output of its check, or why there is none.

    returncode: None where the node sent its report by itself; at: when it said so, in Unix seconds of a clock that is
    not the node's, None for just now; error: why nothing came, "" when something did; hint: what to do about that.
    doubt: who else than root of the node may have written this, in a sentence. reached: False where this way has not
    led to the node at all, which says nothing of the node; via: the way's word of --via, where it was chosen here.
    """

    text: str = ""
    returncode: Optional[int] = None
    stderr: str = ""
    at: Optional[float] = None
    error: str = ""
    hint: str = ""
    doubt: str = ""
    reached: bool = True
    via: str = ""


Progress = Callable[[int], None]
"""Called from the thread that asked, with how many more nodes are done."""


class Transport(Protocol):
    """A way to the reports of many nodes. `description`: how the nodes were asked, for a sentence: "over ssh"."""

    description: str

    def query_mount_reports(self, targets: Sequence[NodeTarget], progress: Progress) -> list[NodeResponse]:
        """Query the targets and return one response each, in their order.

        What is wrong with one node is its answer. Raises Unreachable, AwsError or UsageError only when no node at all
        can be asked this way.
        """
