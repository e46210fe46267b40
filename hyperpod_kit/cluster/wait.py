"""Wait for a cluster: AWS has no waiter for it.

Ready means: the cluster is InService, every group has as many nodes as asked for, and every node is Running. Where
nodes are provisioned continuously InService alone says nothing, and a node that fails is tried again for ever: there
waiting goes on, and what went wrong is told from the events as it happens. Elsewhere nobody tries a node again that has
failed, so that waiting ends.

Nothing is kept between two looks: waiting that was ended, by whatever, is taken up by waiting again.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Mapping, Optional, Protocol, Sequence

from hyperpod_kit.aws.errors import NOT_FOUND
from hyperpod_kit.cluster.command_arguments import cluster_arguments
from hyperpod_kit.cluster.events import CONTINUOUS, EventSource, Troubles
from hyperpod_kit.cluster.group_activity import read_group_activity
from hyperpod_kit.cluster.state import ClusterState, GroupState, shorten_aws_text
from hyperpod_kit.errors import Absent, AwsError, ClusterFailed, NoCredentials, Unreachable, UsageError, WaitTimeout
from hyperpod_kit.system.wait import fixed_pause, poll_until
from hyperpod_kit.untrusted.text import counted

PATIENCE = 5
"""Polls in a row that may go unanswered before waiting ends."""

FAILURE = "Failure"
"""AWS's word for a node that has failed."""

FAILED_FOR = 60.0
"""Seconds after which a node counts as failed for good: one that is being replaced is listed so for a moment."""

EARLIER = timedelta(minutes=2)
"""Events that are a little older than the wait are told too: what it waits for may have failed meanwhile."""


class Clusters(EventSource, Protocol):
    """The questions that waiting asks; aws.sagemaker.SageMaker answers them."""

    @property
    def region(self) -> str: ...

    def describe_cluster(self, name: str) -> dict[str, Any]: ...

    def list_nodes(self, name: str) -> list[dict[str, Any]]: ...


def observe_cluster(clusters: Clusters, name: str) -> ClusterState:
    """Describe the cluster and list its nodes once. Raises AwsError, Unreachable."""
    description = clusters.describe_cluster(name)
    states: dict[str, Counter[str]] = {}
    messages = []
    failed = []
    for node in clusters.list_nodes(name):
        status = node.get("InstanceStatus", {})
        states.setdefault(node["InstanceGroupName"], Counter())[status.get("Status", "unknown")] += 1
        if status.get("Status") == FAILURE:
            failed.append(node["InstanceId"])
        if status.get("Message"):
            messages.append((node["InstanceId"], status["Message"]))
    groups = tuple(
        GroupState(
            group["InstanceGroupName"],
            group.get("CurrentCount", 0),
            group.get("TargetCount", 0),
            dict(states.get(group["InstanceGroupName"], {})),
            group.get("Status", ""),
            read_group_activity(group),
        )
        for group in description["InstanceGroups"]
    )
    return ClusterState(
        name,
        description["ClusterStatus"],
        description.get("FailureMessage", ""),
        groups,
        tuple(messages),
        description.get("NodeProvisioningMode") == CONTINUOUS,
        tuple(failed),
    )


def wait_ready(
    clusters: Clusters,
    name: str,
    *,
    timeout: float,
    interval: float = 10.0,
    desired: Optional[Mapping[str, int]] = None,
    stale_failure: str = "",
    list_missing: Callable[[], Sequence[str]] = tuple,
    progress: Callable[[ClusterState], None] = lambda state: None,
    note: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
) -> ClusterState:
    """Poll every `interval` seconds until the cluster is ready.

    desired: group -> nodes that a change asked for; without it AWS's own target counts are believed.
    stale_failure: a FailureMessage that was there before the change. list_missing: called when counts
    and states are right; returns what is still missing of a change that they do not show. progress:
    called with each state; note: called with a line for each failed node and each poll without an
    answer.
    Raises ClusterFailed with AWS's own reason, WaitTimeout after `timeout` seconds, Unreachable after
    PATIENCE polls in a row without an answer.
    """
    arguments = cluster_arguments(name, clusters.region)
    troubles = Troubles(clusters, name, now() - EARLIER)
    last: list[tuple[ClusterState, list[str]]] = []
    failing: dict[str, float] = {}
    moved = False

    def step() -> Optional[ClusterState]:
        nonlocal moved
        state = observe_cluster(clusters, name)
        progress(state)
        for line in _new_trouble_lines(state, troubles):
            note(line)
        moved = moved or state.status != "InService"
        if desired is not None:
            missing = state.describe_targets_unlike_desired(desired)
        else:
            missing = []
        if state.ready and not missing:
            missing = list(list_missing())
        last[:] = [(state, missing)]
        _raise_if_stuck(state, arguments, missing, failure_is_new=moved or state.failure != stale_failure)
        _raise_if_nodes_stay_failed(state, arguments, failing, clock())
        if state.ready and not missing:
            return state
        return None

    ready: Optional[ClusterState] = _poll_until_result_or_none_at_timeout(
        step,
        f"hyperpod-kit wait {arguments}",
        timeout=timeout,
        interval=interval,
        note=note,
        clock=clock,
        sleep=sleep,
    )
    if ready is not None:
        return ready
    summary = (
        "; ".join(f"status {state.status}, {_describe_missing(state, missing)}" for state, missing in last)
        or "no status was received"
    )
    trouble = ""
    if troubles.last:
        trouble = f"; last error: {shorten_aws_text(troubles.last.line())}"
    raise WaitTimeout(
        f"cluster {name} is not ready after {timeout:g} s: {summary}{trouble}",
        hint=f"hyperpod-kit wait {arguments}",
    )


def wait_deleted(
    clusters: Clusters,
    name: str,
    *,
    timeout: float,
    interval: float = 10.0,
    progress: Callable[[ClusterState], None] = lambda state: None,
    note: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Poll until the cluster is gone. Raises ClusterFailed, WaitTimeout, Unreachable."""
    arguments = cluster_arguments(name, clusters.region)

    def step() -> Optional[bool]:
        try:
            state = observe_cluster(clusters, name)
        except AwsError as err:
            if is_cluster_not_found(err):
                return True
            raise
        progress(state)
        if state.status == "Failed":
            raise ClusterFailed(
                f"cluster {name} could not be deleted: {state.failure or 'AWS gives no reason'}",
                hint=f"remove the cause, then: hyperpod-kit delete-cluster {arguments}",
            )
        return None

    again = f"hyperpod-kit delete-cluster {arguments} --wait"
    if (
        _poll_until_result_or_none_at_timeout(
            step, again, timeout=timeout, interval=interval, note=note, clock=clock, sleep=sleep
        )
        is None
    ):
        raise WaitTimeout(
            f"cluster {name} still exists after {timeout:g} s", hint=f"hyperpod-kit describe-cluster {arguments}"
        )


def is_cluster_not_found(err: AwsError) -> bool:
    """Whether AWS says that there is no such cluster."""
    return err.code in NOT_FOUND or "not found" in err.message.lower()


def _raise_if_stuck(state: ClusterState, arguments: str, missing: list[str], *, failure_is_new: bool) -> None:
    """Raise ClusterFailed when the cluster can no longer become ready: it failed, is being deleted, or
    AWS gave up."""
    if state.status == "Failed":
        node_reasons = [f"{node}: {reason}" for node, reason in state.messages if reason not in state.failure]
        reasons = [state.failure or "AWS gives no reason", *node_reasons]
        raise ClusterFailed(f"cluster {state.name} failed: {'; '.join(reasons)}", hint=_log_hint(state.name, arguments))
    if state.status == "Deleting":
        raise ClusterFailed(f"cluster {state.name} is being deleted", hint=f"hyperpod-kit describe-cluster {arguments}")
    # Back in service with a reason and not with what was asked for: AWS has given the change up. Where nodes are
    # provisioned continuously it never gives up, and the reason may be an old one.
    given_up = state.status == "InService" and state.failure and failure_is_new and not state.continuous
    if given_up and (missing or not state.ready):
        raise ClusterFailed(
            f"the change of cluster {state.name} failed: {'; '.join([state.failure, *missing])}",
            hint=_log_hint(state.name, arguments),
        )


def _raise_if_nodes_stay_failed(state: ClusterState, arguments: str, failing: dict[str, float], now: float) -> None:
    """Raise ClusterFailed when nodes have been failed for FAILED_FOR seconds, since AWS then does not try
    again.

    `failing`: instance id -> since when; updated here.
    """
    for node in [node for node in failing if node not in state.failed]:
        del failing[node]
    if state.continuous or state.status != "InService":
        failing.clear()
        return
    for node in state.failed:
        failing.setdefault(node, now)
    lasting = [node for node, since in failing.items() if now - since >= FAILED_FOR]
    if lasting:
        messages = dict(state.messages)
        reasons = [f"{node}: {shorten_aws_text(messages.get(node, 'AWS gives no reason'))}" for node in lasting]
        raise ClusterFailed(
            f"{counted(len(lasting), 'node')} of cluster {state.name} failed, and AWS does not retry automatically: "
            f"{'; '.join(reasons)}",
            hint=f"hyperpod-kit diagnose {arguments}; then hyperpod-kit replace-node {lasting[0]} {arguments}",
        )


def _new_trouble_lines(state: ClusterState, troubles: Troubles) -> list[str]:
    """Describe each failure that has not been reported yet; [] when the events cannot be read, which must
    not end the wait."""
    if not state.continuous:
        return []
    try:
        return [shorten_aws_text(event.line()) for event in troubles.pop_unreported_trouble_events()]
    except (Absent, AwsError, UsageError):
        return []


def _poll_until_result_or_none_at_timeout(
    step: Callable[[], Any],
    resume_command: str,
    *,
    timeout: float,
    interval: float,
    note: Callable[[str], None],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Any:
    """Call `step` until it returns something or `timeout` is over; a few polls without an answer do not
    end it.

    resume_command: the command that goes on with the wait, for the hint. Raises Unreachable after
    PATIENCE polls in a row without an answer.
    """
    unanswered = 0

    def poll_once() -> Any:
        nonlocal unanswered
        try:
            result = step()
        except Unreachable as err:
            unanswered += 1
            if unanswered >= PATIENCE or isinstance(err, NoCredentials):
                later = f"`{resume_command}` continues from this point"
                if err.hint:
                    hint = f"{err.hint}; {later}"
                else:
                    hint = later
                raise type(err)(err.message, hint=hint) from err
            note(f"{err.message}; retrying ({unanswered} of {PATIENCE - 1})")
            return None
        unanswered = 0
        return result

    return poll_until(
        poll_once, lambda outcome: outcome is not None, fixed_pause(interval), seconds=timeout, clock=clock, sleep=sleep
    )


def _describe_missing(state: ClusterState, missing: Sequence[str]) -> str:
    counts = [f"{group.name} {group.nodes.get('Running', 0)} of {group.target} running" for group in state.groups]
    return ", ".join([*counts, *missing])


def _log_hint(name: str, arguments: str) -> str:
    return (
        f"hyperpod-kit diagnose {arguments}; the log of the lifecycle script is in CloudWatch, group "
        f"/aws/sagemaker/Clusters/{name}/<id>; in a rehearsal: hyperpod-kit rehearse logs NODE"
    )
