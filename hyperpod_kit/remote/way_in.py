"""How nodes are asked for more than a report: over ssh where it answers, by SSM sessions where it does not.

Open or closed is told by instance group, as for reports (any_way.py): what a way says of no node says nothing of them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import Callable, Iterator, Sequence

from hyperpod_kit.errors import HyperpodKitError, RunError, Unreachable
from hyperpod_kit.remote.fan_out import ask_all, cannot_be_asked
from hyperpod_kit.remote.live_cluster import LiveCluster
from hyperpod_kit.remote.ssh import SshRunner
from hyperpod_kit.remote.ssh_access import SshAccess
from hyperpod_kit.remote.ssm_access import sessions_with
from hyperpod_kit.remote.ssm_sessions import SsmRunner, SsmSessions
from hyperpod_kit.remote.target import NodeTarget, SshSettings, sample_of
from hyperpod_kit.run import Runner

SAMPLE = 3
"""Nodes of each instance group that are tried before the group is asked."""

ALL = 1 << 30

Connect = Callable[[NodeTarget], Runner]
"""Raises Unreachable, AwsError or UsageError where no way leads to the node."""

Say = Callable[[str], None]


@contextmanager
def way_in(cluster: LiveCluster, ssh: SshSettings, targets: Sequence[NodeTarget], say: Say) -> Iterator[Connect]:
    """A Runner for each node by the first way that is open for its group. `say`: takes which ways those are.

    Raises UsageError: what was said of how to log in must be right.
    """
    found: dict[str, Connect] = {}
    closed: list[str] = []
    running = [target for target in targets if cannot_be_asked(target) is None]
    groups = {target.group for target in running}
    words: Counter[str] = Counter()
    sessions: list[SsmSessions] = []

    def over_ssh() -> Connect:
        access.load()
        return lambda target: SshRunner(target.address, access)

    def by_ssm() -> Connect:
        sessions.append(sessions_with(cluster))
        return lambda target: SsmRunner(target, sessions[-1])

    with SshAccess(ssh) as access:
        if ssh.named and running:
            access.load()
        # A way is closed to a group when it leads to none of its nodes; to try that with sessions would take minutes.
        for name, begin, samples in (("ssh", over_ssh, (SAMPLE, ALL)), ("SSM sessions", by_ssm, (SAMPLE,))):
            left = [target for target in running if target.group not in found]
            if not left:
                break
            try:
                connect = begin()
                opened, why = _tried(connect, left, samples, ssh.connect_timeout + ssh.command_timeout)
            except HyperpodKitError as err:
                closed.append(f"{name}: {err.message}")
                continue
            found.update({group: connect for group in opened})
            words[name] = sum(target.group in opened for target in left)
            if why:
                closed.append(f"{name}: {why}")
        if closed:
            told = ", ".join(f"{count} node{'s' * (count != 1)} by {name}" for name, count in words.items() if count)
            said = f"asked: {told}" if told else "no way leads to the nodes"
            say(f"{said}; closed: {'; '.join(closed)}")

        def chosen(target: NodeTarget) -> Runner:
            if target.group not in found:
                raise Unreachable("; ".join(closed) if target.group in groups else "its group was not asked")
            return found[target.group](target)

        try:
            yield chosen
        except BaseException:
            for one in sessions:
                one.stop()
            raise


def _tried(
    connect: Connect, targets: Sequence[NodeTarget], samples: Sequence[int], timeout: float
) -> tuple[frozenset[str], str]:
    """(groups of which a node has answered, why the first of the others has not, "" when all have).

    samples: how many nodes of a group are tried, one such number after the other.
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
    why = ""
    for most in samples:
        sample = sample_of([target for target in targets if target.group not in opened], most)
        answers = ask_all(sample, try_one, lambda answer: None, descriptors=3)
        opened |= {target.group for target, answer in zip(sample, answers) if not answer}
        why = next((answer for target, answer in zip(sample, answers) if target.group not in opened), "")
    return opened, why
