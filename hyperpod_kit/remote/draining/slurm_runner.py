"""Slurm's own commands, run on a node of the cluster: on the controller where it is known and answers, else on another
node, since every node of a Slurm cluster has them.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Callable, Iterator, Mapping, Optional, Sequence

from hyperpod_kit.errors import HyperpodKitError, Unreachable
from hyperpod_kit.model.states import Role
from hyperpod_kit.remote.connect.fan_out import reason_to_skip
from hyperpod_kit.remote.live_cluster import LiveCluster
from hyperpod_kit.remote.target import NodeTarget, SshSettings
from hyperpod_kit.remote.transports.transport_choice import open_ssh_or_ssm_connector
from hyperpod_kit.run import Completed, Runner, env_arguments

MOST_TRIED = 4
"""Nodes that are asked for a Slurm that answers."""

AS_ROOT = """\
PATH=$PATH:/opt/slurm/bin:/usr/sbin:/sbin; export PATH
if [ "$(id -u)" != 0 ] && sudo -n true 2>/dev/null; then exec sudo -n env "PATH=$PATH" "$@"; fi
exec env "$@"
"""
"""A shell that is no login shell does not know where Slurm is, and only root and SlurmUser may drain a node."""


class SlurmRunner:
    """A Runner of Slurm's commands by way of another Runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.target = runner.target

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        input: Optional[str] = None,
        env: Optional[Mapping[str, Optional[str]]] = None,
    ) -> Completed:
        """Run a command of Slurm's (see Runner). sudo drops the environment, so that it goes as words of env(1)."""
        command = ["sh", "-c", AS_ROOT, "sh", *env_arguments(env), *argv]
        return self._runner.run(command, timeout=timeout, check=check, input=input)


@contextmanager
def open_slurm_runner(cluster: LiveCluster, ssh: SshSettings, say: Callable[[str], None]) -> Iterator[Runner]:
    """A Runner of Slurm's commands on the cluster. Raises Unreachable where no node's Slurm answers, AwsError."""
    targets = _candidate_nodes(cluster.list_targets())
    with open_ssh_or_ssm_connector(cluster, ssh, targets, say) as connect:
        yield _first_runner_with_slurm_up(connect, targets)


def _candidate_nodes(targets: Sequence[NodeTarget]) -> list[NodeTarget]:
    """Return a few nodes that can be reached, controllers first, then one of each other group."""
    reachable = [target for target in targets if reason_to_skip(target) is None]
    controllers = [target for target in reachable if target.role == Role.CONTROLLER]
    group_members = {target.group: target for target in reversed(reachable) if target.role != Role.CONTROLLER}
    return [*controllers, *group_members.values()][:MOST_TRIED]


def _first_runner_with_slurm_up(connect: Callable[[NodeTarget], Runner], targets: Sequence[NodeTarget]) -> Runner:
    reason = "no node is running"
    for target in targets:
        try:
            runner = SlurmRunner(connect(target))
            done = runner.run(["scontrol", "ping"], timeout=30.0, check=False)
        except HyperpodKitError as err:
            reason = err.message
            continue
        if " is UP" in done.stdout:
            return runner
        reason = (done.stderr.strip() or done.stdout.strip() or f"scontrol ping exited {done.returncode}").splitlines()[
            -1
        ]
    raise Unreachable(f"cannot query Slurm: {reason}")
