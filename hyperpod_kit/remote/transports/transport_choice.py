"""How nodes are asked for more than a report: over ssh where it answers, by SSM sessions where it does not.

A way is open or closed for a whole instance group, as for reports (auto_transport.py): where a way leads to no node,
nothing is known of the nodes.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import Callable, Iterator, Sequence

from hyperpod_kit.errors import HyperpodKitError, RunError, Unreachable
from hyperpod_kit.remote.connect.fan_out import query_all, reason_to_skip
from hyperpod_kit.remote.connect.ssh import SshRunner
from hyperpod_kit.remote.connect.ssh_access import SshAccess
from hyperpod_kit.remote.connect.ssm_access import create_ssm_sessions
from hyperpod_kit.remote.connect.ssm_sessions import SsmRunner, SsmSessions
from hyperpod_kit.remote.live_cluster import LiveCluster
from hyperpod_kit.remote.target import NodeTarget, SshSettings, sample_per_group
from hyperpod_kit.run import Runner
from hyperpod_kit.untrusted.text import counted

SAMPLE = 3
"""Nodes of each instance group that are tried before the group is asked."""

ALL = 1 << 30

Connect = Callable[[NodeTarget], Runner]
"""Raises Unreachable, AwsError or UsageError where no way leads to the node."""

Say = Callable[[str], None]


@contextmanager
def open_ssh_or_ssm_connector(
    cluster: LiveCluster, ssh: SshSettings, targets: Sequence[NodeTarget], say: Say
) -> Iterator[Connect]:
    """Yield a function that returns a Runner for a node, by the first way that is open for its group.

    `say`: takes which ways those are. Raises UsageError when the given login settings are wrong.
    """
    connections: dict[str, Connect] = {}
    closed: list[str] = []
    running = [target for target in targets if reason_to_skip(target) is None]
    groups = {target.group for target in running}
    counts: Counter[str] = Counter()
    sessions: list[SsmSessions] = []

    def over_ssh() -> Connect:
        access.load_private_key_and_known_hosts()
        return lambda target: SshRunner(target.address, access)

    def by_ssm() -> Connect:
        sessions.append(create_ssm_sessions(cluster))
        return lambda target: SsmRunner(target, sessions[-1])

    with SshAccess(ssh) as access:
        if ssh.named and running:
            access.load_private_key_and_known_hosts()
        # A way is closed to a group when it leads to none of its nodes; to try that with sessions would take minutes.
        for name, begin, samples in (("ssh", over_ssh, (SAMPLE, ALL)), ("SSM sessions", by_ssm, (SAMPLE,))):
            remaining = [target for target in running if target.group not in connections]
            if not remaining:
                break
            try:
                connect = begin()
                opened, reason = _find_reachable_groups_and_failure(
                    connect, remaining, samples, ssh.connect_timeout + ssh.command_timeout
                )
            except HyperpodKitError as err:
                closed.append(f"{name}: {err.message}")
                continue
            connections.update({group: connect for group in opened})
            counts[name] = sum(target.group in opened for target in remaining)
            if reason:
                closed.append(f"{name}: {reason}")
        if closed:
            parts = ", ".join(f"{counted(count, 'node')} by {name}" for name, count in counts.items() if count)
            message = f"asked: {parts}" if parts else "no transport reaches the nodes"
            say(f"{message}; closed: {'; '.join(closed)}")

        def connect_to(target: NodeTarget) -> Runner:
            if target.group not in connections:
                raise Unreachable("; ".join(closed) if target.group in groups else "its group was not queried")
            return connections[target.group](target)

        try:
            yield connect_to
        except BaseException:
            for session in sessions:
                session.stop()
            raise


def _find_reachable_groups_and_failure(
    connect: Connect, targets: Sequence[NodeTarget], samples: Sequence[int], timeout: float
) -> tuple[frozenset[str], str]:
    """Return the groups of which a node has answered, and why the first of the others has not, "" when all have.

    `samples`: how many nodes of a group are tried, one such number after the other.
    """

    def try_one(target: NodeTarget) -> str:
        try:
            connect(target).run(["true"], timeout=timeout, check=False)
        except RunError:
            return ""  # it is there, and slow: what to think of that is its diagnosis
        except HyperpodKitError as err:
            return err.message
        return ""

    opened: frozenset[str] = frozenset()
    reason = ""
    for most in samples:
        sample = sample_per_group([target for target in targets if target.group not in opened], most)
        errors = query_all(sample, try_one, lambda error: None, descriptors=3)
        opened |= {target.group for target, error in zip(sample, errors) if not error}
        reason = next((error for target, error in zip(sample, errors) if target.group not in opened), "")
    return opened, reason
