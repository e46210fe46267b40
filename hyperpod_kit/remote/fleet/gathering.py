"""Asks a cluster for what its view is made of: nodes for their notes, Slurm for its queue, roots for their jobs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Callable, ContextManager, Mapping, Optional, Sequence

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.model.states import Role
from hyperpod_kit.remote.draining.slurm_runner import SlurmRunner
from hyperpod_kit.remote.fleet.fleet_view import FleetView, build_fleet_view
from hyperpod_kit.remote.fleet.node_notes import TEXTFILES, NodeNotes, query_notes
from hyperpod_kit.remote.job_records import query_root
from hyperpod_kit.remote.live_cluster import LiveCluster
from hyperpod_kit.remote.target import NodeTarget, SshSettings
from hyperpod_kit.remote.transports.transport import Progress
from hyperpod_kit.remote.transports.transport_choice import Connect, open_ssh_or_ssm_connector
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import records

QUEUE_FIELDS = (
    ("JobId", "JobID"),
    ("ArrayJobId", "ArrayJobID"),
    ("ArrayTaskId", "ArrayTaskID"),
    ("JobState", "State"),
    ("User", "UserName"),
    ("Name", "Name"),
    ("NodeList", "NodeList"),
)
"""As records.FIELDS. Name is whatever its user likes."""

MOST_TRIED = 4
"""Nodes that are asked for Slurm's queue."""


def query_fleet(
    cluster: LiveCluster,
    ssh: SshSettings,
    roots: Sequence[str],
    say: Callable[[str], None],
    bar: Callable[[int], ContextManager[Progress]],
    now: Callable[[], float],
) -> tuple[FleetView, list[NodeNotes]]:
    """Query everything once. Returns the view, and the notes that it was made of. Raises AwsError, Unreachable,
    ClusterError."""
    targets = cluster.require_targets()
    launched = {node.instance_id: node.launched for node in cluster.list_nodes_not_being_removed()}
    textfiles = TEXTFILES
    if cluster.settings is not None:
        textfiles = cluster.settings.node_config().health.textfile_directory or TEXTFILES
    not_known: list[str] = []
    with ExitStack() as stack:
        connect = stack.enter_context(open_ssh_or_ssm_connector(cluster, ssh, targets, say))
        advance = stack.enter_context(bar(len(targets)))
        notes = query_notes(
            targets,
            connect,
            launched=launched,
            textfiles=textfiles,
            timeout=ssh.command_timeout,
            progress=lambda node_notes: advance(1),
        )
        answering = _controllers_first([node_notes.target for node_notes in notes if not node_notes.error])
        queue = _query_queue(answering, connect, not_known)
        node = None
        if answering:
            node = connect(answering[0])
        statuses = query_roots(roots, node, not_known)
    return build_fleet_view(cluster.name, now(), notes, queue, statuses, not_known), notes


def _controllers_first(targets: Sequence[NodeTarget]) -> list[NodeTarget]:
    return sorted(targets, key=lambda target: target.role != Role.CONTROLLER)


def _query_queue(targets: Sequence[NodeTarget], connect: Connect, not_known: list[str]) -> list[dict[str, str]]:
    """Return the records of Slurm's queue from the first node that has them."""
    reason = "no node answers"
    for target in targets[:MOST_TRIED]:
        try:
            return records.query_squeue(SlurmRunner(connect(target)), fields=QUEUE_FIELDS)
        except HyperpodKitError as err:
            reason = err.message
    not_known.append(f"Slurm's queue: {reason}")
    return []


def query_roots(roots: Sequence[str], node: Optional[Runner], not_known: list[str]) -> list[Mapping[str, Any]]:
    """Return what `job status` tells of each root; for one that cannot be read a line in `not_known`."""
    statuses = []
    for root in roots:
        reasons: list[str] = []
        status = query_root(root, node, reasons)
        if status is None:
            not_known.append(f"jobs on {root}: {'; '.join(reasons)}")
        else:
            statuses.append(status)
    return statuses
