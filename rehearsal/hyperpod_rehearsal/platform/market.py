"""What instances EC2 has, as a person says it from outside: capacity that is not there, Spot that is taken back.

`<state>/market.json` says both (targets.py writes it, this only reads): `notices`, instance id -> Unix time of its end;
`capacity`, an id and a number of instances that can still be had, any number where it is absent. A group is Spot by its
`CapacityRequirements.Spot`. Public: the two metadata paths and their form (EC2's user guide, "Spot Instance
interruption notices"), and the words for capacity that is lacking (HyperPod's cluster events reference). Assumed: that
nothing tells Slurm of a notice, and that HyperPod asks again until there is capacity.
"""

from __future__ import annotations

import threading
import time
import traceback
from typing import Callable, Dict, List, Mapping, Set

from hyperpod_rehearsal.platform import events
from hyperpod_rehearsal.platform.cluster_state import RehearsedCluster, RehearsedNode, is_spot
from hyperpod_rehearsal.platform.fleet import CreationFailed, Fleet
from hyperpod_rehearsal.records import state

INTERVAL = 0.5
NO_CAPACITY = "We currently do not have sufficient capacity to launch new {type} instances. Please try again."


def lacks_capacity(node: RehearsedNode) -> bool:
    """Whether there was no instance for a node."""
    return NO_CAPACITY.format(type=node.instance_type) in node.message


class Capacity:
    """Counts the instances that were launched since a person said how many can be had. Methods may run in any
    thread."""

    def __init__(self, fleet: Fleet) -> None:
        self._file = fleet.layout.market_file
        self._lock = threading.Lock()
        self._launched: Dict[str, int] = {}

    def take(self, node: RehearsedNode) -> None:
        """Take an instance for a node. Raises CreationFailed, in AWS's words, when there is none."""
        capacity = (state.read_own_json_object_or_none(self._file) or {}).get("capacity")
        if not capacity:
            return
        with self._lock:
            launched = self._launched.get(capacity["id"], 0)
            if launched >= capacity["instances"]:
                raise CreationFailed(NO_CAPACITY.format(type=node.instance_type))
            self._launched[capacity["id"]] = launched + 1


class Spot:
    """Takes Spot instances back: a notice to the node and an event, then the end of the machine."""

    def __init__(
        self,
        fleet: Fleet,
        clusters: Mapping[str, RehearsedCluster],
        stopping: threading.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._clusters = clusters
        self._stopping = stopping
        self._clock = clock
        self._noticed: Set[str] = set()

    def take_back_until_stopped(self) -> None:
        while not self._stopping.wait(INTERVAL):
            try:
                self.look()
            except Exception:  # one bad round must not end the loop
                traceback.print_exc()

    def look(self) -> List[str]:
        """Give the notices that are new, end the instances whose time has come; the ids of the latter."""
        notices = (state.read_own_json_object_or_none(self._fleet.layout.market_file) or {}).get("notices") or {}
        ended: List[str] = []
        for cluster in list(self._clusters.values()):
            for node in list(cluster.nodes.values()):
                ends_at = notices.get(node.instance_id)
                if ends_at is None or not is_spot(cluster.group(node.group)):
                    continue
                if node.instance_id not in self._noticed:
                    self._noticed.add(node.instance_id)
                    self._fleet.metadata.set_spot_end(node.instance_id, ends_at)
                    events.record_spot_notice(cluster, node, ends_at)
                if self._clock() >= ends_at and self._fleet.machines.exit_code(node.instance_id) is None:
                    self._fleet.machines.kill(node.instance_id)
                    ended.append(node.instance_id)
        return ended
