"""Captures that ended jobs left in the memory of nodes, and that storage does not have yet.

Slurm knows nothing of them: an Epilog hands what takes long to a unit of systemd, and the job is over for Slurm while
that unit still writes. A node that is deleted or restarted at that moment takes the captures with it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Callable, Iterator, Mapping, Optional, Sequence

from hyperpod_kit.cluster.nodes import slurm_node_name
from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.remote.connect.fan_out import reason_to_skip
from hyperpod_kit.remote.draining.slurm_runner import SlurmRunner
from hyperpod_kit.remote.live_cluster import LiveCluster
from hyperpod_kit.remote.target import NodeTarget, SshSettings
from hyperpod_kit.remote.transports.transport_choice import open_ssh_or_ssm_connector
from hyperpod_kit.run import Runner

COUNT = "find /dev/shm -maxdepth 4 -type f -name 'hpk-*.ctl' 2>/dev/null | wc -l"
"""Each slot has a control page, which goes with the slot; a program that older bundles' nodes have, too."""

AT_ONCE = 16
"""Nodes that are asked at the same time."""

CountUnsaved = Callable[[Sequence[str]], Mapping[str, Optional[int]]]
"""Names of nodes in Slurm to the number of captures on each; None for a node that cannot be asked."""


@contextmanager
def open_unsaved_captures_counter(
    cluster: LiveCluster, ssh: SshSettings, say: Callable[[str], None]
) -> Iterator[CountUnsaved]:
    """Yield a function that counts the captures on nodes of this cluster. Raises AwsError, UsageError."""
    targets = {
        slurm_node_name(target.address): target for target in cluster.list_targets() if reason_to_skip(target) is None
    }
    with open_ssh_or_ssm_connector(cluster, ssh, list(targets.values()), say) as connect:

        def count_on(name: str) -> Optional[int]:
            target = targets.get(name)
            if target is None:
                return None
            return _count_captures_on_node(connect, target)

        def count(names: Sequence[str]) -> Mapping[str, Optional[int]]:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                return dict(zip(names, pool.map(count_on, names)))

        yield count


def _count_captures_on_node(connect: Callable[[NodeTarget], Runner], target: NodeTarget) -> Optional[int]:
    """Count the captures in the memory of one node, None where it does not answer."""
    try:
        output = SlurmRunner(connect(target)).run(["sh", "-c", COUNT], timeout=30.0).stdout.strip()
    except HyperpodKitError:
        return None
    if output.isdecimal():
        return int(output)
    return None
