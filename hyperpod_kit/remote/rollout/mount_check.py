"""The mounts of nodes that were switched: asked at once, and again for a while where one does not serve."""

from __future__ import annotations

import time
from typing import Callable, Mapping, Sequence

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.remote.connect.fan_out import query_all
from hyperpod_kit.remote.reports.node_report import NodeReport
from hyperpod_kit.remote.reports.validate_mounts import judge_report
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.transport import COMMAND, NodeResponse
from hyperpod_kit.run import Runner
from hyperpod_kit.system.wait import fixed_pause, poll_until

WITHIN = 90.0
"""Seconds in which the mounts of a node serve after a switch: a repair has begun and ended by then."""
INTERVAL = 5.0
LOOK = 60.0


def find_mount_problems(
    targets: Sequence[NodeTarget],
    connect: Callable[[NodeTarget], Runner],
    expected: Mapping[str, Sequence[Mount]],
    seconds: float = WITHIN,
) -> dict[NodeTarget, str]:
    """Return the nodes whose required mounts do not all serve within `seconds`, each with the reason. `expected`: as
    `validate_mounts` has it."""

    def query(target: NodeTarget) -> NodeReport:
        try:
            done = connect(target).run(COMMAND, timeout=LOOK, check=False)
            response = NodeResponse(done.stdout, done.returncode, done.stderr)
        except HyperpodKitError as err:
            response = NodeResponse(error=err.message, hint=err.hint or "")
        return judge_report(target, response, expected.get(target.group, ()), LOOK, time.time())

    def problem_on(target: NodeTarget) -> str:
        return poll_until(
            lambda: mount_problem(query(target)), lambda problem: not problem, fixed_pause(INTERVAL), seconds=seconds
        )

    problems = query_all(targets, problem_on, lambda problem: None)
    return {target: problem for target, problem in zip(targets, problems) if problem}


def mount_problem(report: NodeReport) -> str:
    """Return why a node's mounts do not count as sound, "" when they do."""
    if report.error:
        return report.error
    bad = [mount for mount in report.mounts if mount.required and not mount.healthy]
    return "; ".join(f"mount {mount.name} at {mount.path} is {mount.state}: {mount.detail}" for mount in bad)
