"""What happens to clusters over time: creation, replacement, reboot, deletion. Each runs in its own thread."""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import AbstractSet, Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.system.wait import fixed_pause, poll_until
from hyperpod_rehearsal.platform import events, slurm_conf
from hyperpod_rehearsal.platform.bundle_source import read_provisioning_parameters
from hyperpod_rehearsal.platform.cluster_state import CONTROLLER, RehearsedCluster, RehearsedNode, instance_type
from hyperpod_rehearsal.platform.fleet import CreationFailed, Fleet, new_instance_id
from hyperpod_rehearsal.platform.market import Capacity
from hyperpod_rehearsal.platform.slurm_control import SlurmControl
from hyperpod_rehearsal.s3.store import StoredBuckets

REGISTRATION_DEADLINE = 300.0
"""Seconds that a replaced node's slurmd has to register before the node is left down."""


def memory_mb_per_node(node_count: int) -> int:
    """RealMemory in MB: an even share of this machine's memory, so that Slurm's sum is not more than there is."""
    with open("/proc/meminfo") as handle:
        total_kb = int(handle.readline().split()[1])
    return max(512, total_kb // 1024 // (node_count + 1))


RELEASE_DEADLINE = 180.0
"""Seconds that a job gets to let a node go that is to be replaced."""

AWS_WORDING = "Lifecycle scripts did not run successfully. Ensure the scripts exist in provided S3 path."
"""How DescribeCluster begins its FailureMessage on AWS; the details that follow are the rehearsal's own."""


def failure_message(failed: Sequence[RehearsedNode]) -> str:
    """One paragraph per reason, naming the instances that share it. The first in full; of the others the first line and
    the last, since what differs in them is mostly a name or a time."""
    reasons: Dict[str, List[str]] = {}
    for node in failed:
        reasons.setdefault(node.message, []).append(f"{node.instance_id} ({node.group_and_index}, {node.host})")
    first_reason, *further_reasons = reasons
    details = [f"Instance {', '.join(reasons[first_reason])} failed: {first_reason}"]
    for reason in further_reasons:
        first, *rest = reason.splitlines() or [""]
        details.append(f"Instance {', '.join(reasons[reason])} failed: {first}{f' … {rest[-1]}' if rest else ''}")
    return "\n".join([AWS_WORDING, *details])


def error_message(err: Exception) -> str:
    """The message of an error of the kit; of any other its name and arguments."""
    if isinstance(err, HyperpodKitError):
        return err.message
    return repr(err)


class Operations:
    """`clusters` by name, shared with the control plane; `lock` guards it; `changed()` is called after each change."""

    def __init__(self, fleet: Fleet, slurm: SlurmControl, store: StoredBuckets, changed: Callable[[], None]) -> None:
        self.fleet = fleet
        self.slurm = slurm
        self.store = store
        self.clusters: Dict[str, RehearsedCluster] = {}
        self.lock = threading.RLock()
        self.claimed_ids: Set[str] = set()
        """Instances that an operation works on: the recovery loop leaves them alone."""
        self.changed = changed
        self.capacity = Capacity(fleet)
        self.freed_addresses: List[str] = []
        """Of instances that are gone, oldest first: continuous provisioning gives them to new ones at once."""

    def run_in_background(self, work: Callable[..., None], *args: Any) -> None:
        """Run `work` in a thread; print what it raises to the daemon's log and call `changed()` at the end."""

        def guarded() -> None:
            try:
                work(*args)
            except Exception:
                traceback.print_exc()
            finally:
                self.changed()

        threading.Thread(target=guarded, daemon=True, name=work.__name__).start()

    def add_missing_nodes(
        self, cluster: RehearsedCluster, group: Mapping[str, Any], target_count: int
    ) -> List[RehearsedNode]:
        """Add nodes to a group until it has `target_count`, at free indices; returns the new, claimed ones.

        Call with the lock held.
        """
        name = group["InstanceGroupName"]
        position = [entry["InstanceGroupName"] for entry in cluster.groups].index(name)
        taken = {node.ip for other in self.clusters.values() for node in other.nodes.values()}
        indices = {node.index for node in cluster.nodes_in_group(name)}
        free = (index for index in itertools.count() if index not in indices)
        added = []
        offset = 0
        for index in itertools.islice(free, max(0, target_count - len(indices))):
            address = self._take_freed_address(cluster, taken)
            if not address:
                while (address := self.fleet.network.instance_address(position, index + offset)) in taken:
                    offset += 1
            taken.add(address)
            node = RehearsedNode(
                new_instance_id(), name, instance_type(group), index, address, role=cluster.slurm.get(name, "")
            )
            cluster.nodes[node.instance_id] = node
            self.claimed_ids.add(node.instance_id)
            added.append(node)
        return added

    def _take_freed_address(self, cluster: RehearsedCluster, taken: AbstractSet[str]) -> str:
        """An address that another instance has just had, whatever its group was; "" for none, or where the cluster is
        not provisioned continuously."""
        while cluster.is_continuously_provisioned and self.freed_addresses:
            address = self.freed_addresses.pop()
            if address not in taken:
                return address
        return ""

    def bring_up_cluster(self, cluster: RehearsedCluster) -> None:
        """Bring a new cluster up: InService, or Failed with the reason; the machines stay, to be looked at.

        Where nodes are provisioned continuously the controller decides, and the others come while it is in service.
        """
        try:
            parameters = read_provisioning_parameters(self.store, cluster.request)
            with self.lock:
                if cluster.status != "Creating":
                    return  # deleted before it had a node: the deletion would not see what came now
                cluster.slurm, cluster.partitions = slurm_conf.slurm_node_types_and_partitions(
                    cluster.request, parameters
                )
                for group in cluster.groups:
                    self.add_missing_nodes(cluster, group, group.get("InstanceCount", 0))
                nodes = list(cluster.nodes.values())
            self.changed()
            events.record_event_if_continuous(cluster, f"Cluster {cluster.name} creation has Started")
            heads = [node for node in nodes if node.role == CONTROLLER]
            self.launch_and_wait_for_required(cluster, nodes, heads if cluster.is_continuously_provisioned else nodes)
        except HyperpodKitError as err:
            with self.lock:
                if cluster.status == "Creating":
                    cluster.status, cluster.failure_message = "Failed", err.message
                    events.record_event_if_continuous(
                        cluster,
                        f"Cluster {cluster.name} creation failed",
                        level=events.ERROR,
                        metadata={"FailureMessage": err.message},
                    )
            return
        with self.lock:
            if cluster.status == "Creating":
                cluster.status = "InService"

    def launch_and_wait_for_required(
        self, cluster: RehearsedCluster, nodes: Sequence[RehearsedNode], required: Sequence[RehearsedNode]
    ) -> None:
        """Launch nodes in parallel and wait for the lifecycle scripts of the required ones.

        Raises CreationFailed naming those that failed.
        """
        memory = memory_mb_per_node(len(cluster.nodes))
        pool = ThreadPoolExecutor(max_workers=max(1, len(nodes)), thread_name_prefix="create")
        launched = {node.instance_id: pool.submit(self._bring_up_node, cluster, node, memory) for node in nodes}
        futures: List[Future[None]] = [launched[node.instance_id] for node in required]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            # The first failure decides; others that fail in the same moment are worth naming too.
            wait(futures, timeout=2.0)
        finally:
            pool.shutdown(wait=False)
        failed = [node for node in required if node.status == "Failure"]
        if failed:
            raise CreationFailed(failure_message(failed))

    def _bring_up_node(self, cluster: RehearsedCluster, node: RehearsedNode, memory: int) -> None:
        """Launch a node, wait until it is created, record status and events; its claim ends in any case."""
        try:
            self.capacity.take(node)
            self.fleet.launch(cluster, node, memory)
            self.changed()
            events.record_script_state(cluster, node, "Started")
            self.fleet.wait_until_created(node, is_desired=lambda: cluster.status != "Deleting")
            node.status, node.message = "Running", ""
            events.record_script_state(cluster, node, "Succeeded")
        except Exception as err:
            node.status, node.message = "Failure", error_message(err)
            events.record_creation_failure(cluster, node)
            raise
        finally:
            with self.lock:
                self.claimed_ids.discard(node.instance_id)
            self.changed()

    def try_to_claim_node(self, node: RehearsedNode) -> bool:
        """Claim a node for one operation; False when another has it."""
        with self.lock:
            if node.instance_id in self.claimed_ids:
                return False
            self.claimed_ids.add(node.instance_id)
            return True

    def replace_node(self, cluster: RehearsedCluster, old: RehearsedNode, reason: str) -> None:
        """Replace a claimed node by a new instance with the same index and address, and mark it down meanwhile."""
        new = RehearsedNode(
            new_instance_id(),
            old.group,
            old.instance_type,
            old.index,
            old.ip,
            role=old.role,
            replaces=old.instance_id,
            logical_id=old.logical_id,
            message=reason,
        )
        old.status, old.message = "ShuttingDown", reason
        self.changed()
        print(f"{time.time():.2f} replacing {old.instance_id} ({old.group_and_index}): {reason}", flush=True)
        events.record_replacement(cluster, old, new, reason)
        if self.fleet.settings.profile.step_retry:
            self._mark_failing_and_wait_until_unused(cluster, old)
        self.slurm.mark_down(cluster, old)
        self.fleet.remove(old)
        with self.lock:
            self.claimed_ids.discard(old.instance_id)
            cluster.nodes.pop(old.instance_id, None)
            if cluster.status == "Deleting":
                return
            self.claimed_ids.add(new.instance_id)
            cluster.nodes[new.instance_id] = new
        self.changed()
        memory = memory_mb_per_node(len(cluster.nodes))
        self.fleet.rewrite_cluster_configs(cluster, memory, skip=new)
        self._bring_up_node(cluster, new, memory)
        self.wait_for_registration_and_resume(cluster, new)

    def _mark_failing_and_wait_until_unused(self, cluster: RehearsedCluster, node: RehearsedNode) -> None:
        """Leave a node to its job, whose step HyperPod retries, until the job has let it go. AWS takes half an hour for
        a replacement: no job still waits for the old machine then."""
        if node.role in ("", CONTROLLER):
            return
        self.slurm.mark_failing(cluster, node)
        poll_until(
            lambda: self.fleet.stopping.is_set() or not self.slurm.may_be_used_by_running_job(cluster, node),
            bool,
            fixed_pause(0.5),
            seconds=RELEASE_DEADLINE,
        )

    def reboot_node(self, cluster: RehearsedCluster, node: RehearsedNode, reason: str) -> None:
        """Boot a claimed node's instance again; its disk and instance id stay, no lifecycle script runs."""
        node.status, node.message = "Pending", reason
        self.changed()
        print(f"{time.time():.2f} rebooting {node.instance_id} ({node.group_and_index}): {reason}", flush=True)
        events.record_reboot(cluster, node, "Started", reason)
        self.slurm.mark_down(cluster, node)
        try:
            self.fleet.restart(node)
            self.fleet.wait_until_created(node, is_desired=lambda: cluster.status != "Deleting")
            node.status, node.message = "Running", ""
            events.record_reboot(cluster, node, "Succeeded", reason)
        except HyperpodKitError as err:
            node.status, node.message = "Failure", err.message
            events.record_reboot(cluster, node, "Failed", err.message)
            raise
        finally:
            with self.lock:
                self.claimed_ids.discard(node.instance_id)
            self.changed()
        self.wait_for_registration_and_resume(cluster, node)

    def wait_for_registration_and_resume(self, cluster: RehearsedCluster, node: RehearsedNode) -> None:
        """Wait until the node's new slurmd has registered, then resume the node in Slurm."""
        if node.role in ("", CONTROLLER):
            return
        deadline = time.monotonic() + REGISTRATION_DEADLINE
        while node.instance_id in cluster.nodes and cluster.status != "Deleting":
            if self.slurm.has_slurmd_registered_since_boot(cluster, node):
                self.slurm.resume_node(cluster, node)
                print(f"{time.time():.2f} resumed {node.host} as {node.instance_id}", flush=True)
                return
            if time.monotonic() > deadline:
                node.message = "its slurmd has not registered: left down in Slurm"
                return
            if self.fleet.stopping.wait(0.2):
                return

    def delete_cluster(self, cluster: RehearsedCluster) -> None:
        """Remove all machines of a cluster, then the cluster."""
        self.remove_machines(cluster)
        with self.lock:
            self.clusters.pop(cluster.name, None)

    def remove_machines(self, cluster: RehearsedCluster, only: Optional[Sequence[RehearsedNode]] = None) -> None:
        """Mark all nodes of a cluster, or those of `only`, ShuttingDown and remove their machines in parallel."""
        nodes = list(cluster.nodes.values() if only is None else only)
        for node in nodes:
            node.status = "ShuttingDown"
        self.changed()
        with ThreadPoolExecutor(max_workers=max(1, min(8, len(nodes)))) as pool:
            list(pool.map(self.fleet.remove, nodes))
