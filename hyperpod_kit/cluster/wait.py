"""Wait for a cluster: AWS has no waiter for it.

Ready means: the cluster is InService, every group has as many nodes as asked for, and every node is Running. On
clusters that are provisioned continuously InService alone says nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Callable, Optional, Protocol

from hyperpod_kit.aws.errors import NOT_FOUND
from hyperpod_kit.cluster.state import ClusterState, GroupState
from hyperpod_kit.errors import AwsError, ClusterFailed, Unreachable, WaitTimeout

PATIENCE = 5
"""Polls in a row that may go unanswered before waiting ends."""


class Clusters(Protocol):
    """The two questions that waiting asks; aws.sagemaker.SageMaker answers them."""

    def describe_cluster(self, name: str) -> dict[str, Any]: ...

    def list_nodes(self, name: str) -> list[dict[str, Any]]: ...


def observe(clusters: Clusters, name: str) -> ClusterState:
    """Ask once. Raises AwsError, Unreachable."""
    answer = clusters.describe_cluster(name)
    states: dict[str, Counter[str]] = {}
    messages = []
    for node in clusters.list_nodes(name):
        status = node.get("InstanceStatus", {})
        states.setdefault(node["InstanceGroupName"], Counter())[status.get("Status", "unknown")] += 1
        if status.get("Message"):
            messages.append((node["InstanceId"], status["Message"]))
    groups = tuple(
        GroupState(
            group["InstanceGroupName"],
            group.get("CurrentCount", 0),
            group.get("TargetCount", 0),
            dict(states.get(group["InstanceGroupName"], {})),
        )
        for group in answer["InstanceGroups"]
    )
    return ClusterState(name, answer["ClusterStatus"], answer.get("FailureMessage", ""), groups, tuple(messages))


def wait_ready(
    clusters: Clusters,
    name: str,
    *,
    timeout: float,
    interval: float = 10.0,
    progress: Callable[[ClusterState], None] = lambda state: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ClusterState:
    """Poll every `interval` seconds until the cluster is ready.

    Raises ClusterFailed with AWS's own reason, WaitTimeout after `timeout` seconds, Unreachable after PATIENCE
    unanswered polls.
    """
    last: list[ClusterState] = []

    def step() -> Optional[ClusterState]:
        state = observe(clusters, name)
        last[:] = [state]
        progress(state)
        if state.status == "Failed":
            reasons = "; ".join(
                [state.failure or "AWS gives no reason", *(f"{node}: {why}" for node, why in state.messages)]
            )
            raise ClusterFailed(f"cluster {name} failed: {reasons}", hint=_logs(name))
        if state.status == "Deleting":
            raise ClusterFailed(
                f"cluster {name} is being deleted", hint=f"hyperpod-kit describe-cluster --cluster {name}"
            )
        return state if state.ready else None

    ready: Optional[ClusterState] = _poll(step, timeout=timeout, interval=interval, clock=clock, sleep=sleep)
    if ready is not None:
        return ready
    seen = "; ".join(f"status {state.status}, {_missing(state)}" for state in last) or "it never answered"
    raise WaitTimeout(
        f"cluster {name} is not ready after {timeout:g} s: {seen}", hint=f"hyperpod-kit wait --cluster {name}"
    )


def wait_deleted(
    clusters: Clusters,
    name: str,
    *,
    timeout: float,
    interval: float = 10.0,
    progress: Callable[[ClusterState], None] = lambda state: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Poll until the cluster is gone. Raises ClusterFailed, WaitTimeout, Unreachable."""

    def step() -> Optional[bool]:
        try:
            state = observe(clusters, name)
        except AwsError as err:
            if err.code in NOT_FOUND or "not found" in str(err).lower():
                return True
            raise
        progress(state)
        if state.status == "Failed":
            raise ClusterFailed(f"cluster {name} could not be deleted: {state.failure or 'AWS gives no reason'}")
        return None

    if _poll(step, timeout=timeout, interval=interval, clock=clock, sleep=sleep) is None:
        raise WaitTimeout(
            f"cluster {name} is still there after {timeout:g} s", hint=f"hyperpod-kit describe-cluster --cluster {name}"
        )


def _poll(
    step: Callable[[], Any],
    *,
    timeout: float,
    interval: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Any:
    """`step` until it returns something or `timeout` is over; a few unanswered polls do not end it."""
    deadline = clock() + timeout
    silent = 0
    while True:
        try:
            result = step()
            silent = 0
            if result is not None:
                return result
        except Unreachable:
            silent += 1
            if silent >= PATIENCE:
                raise
        left = deadline - clock()
        if left <= 0:
            return None
        sleep(min(interval, left))


def _missing(state: ClusterState) -> str:
    return ", ".join(
        f"{group.name} {group.nodes.get('Running', 0)} of {group.target} running" for group in state.groups
    )


def _logs(name: str) -> str:
    return (
        f"the log of the lifecycle script is in CloudWatch, group /aws/sagemaker/Clusters/{name}/<id>; "
        "in a rehearsal: hyperpod-kit rehearse logs NODE"
    )
