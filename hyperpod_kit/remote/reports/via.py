"""How validate-mounts reaches the nodes: the transport of each word that --via takes."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Callable, Iterator, Optional

from hyperpod_kit.errors import Unreachable
from hyperpod_kit.model.states import Role

if TYPE_CHECKING:
    from hyperpod_kit.remote.connect.ssh_access import SshAccess
    from hyperpod_kit.remote.live_cluster import LiveCluster
    from hyperpod_kit.remote.target import SshSettings
    from hyperpod_kit.remote.transports.transport import Transport


AUTO = "auto"
SAMPLE = 2
"""Nodes of an instance group that are asked by SSM before the others: AWS begins three sessions a second."""


@contextmanager
def open_transport(
    via: str,
    cluster: LiveCluster,
    ssh: SshSettings,
    max_age: float,
    controller: Optional[str],
    say: Callable[[str], None],
) -> Iterator[Transport]:
    """Open the transport of `via`, and close it at the end.

    `say`: takes which way was chosen, where that is left to us. Raises UsageError, AwsError, Unreachable.
    """
    with ExitStack() as stack:
        if via == AUTO:
            yield _auto_transport(stack, cluster, ssh, max_age, controller, say)
        elif via == "pull":
            yield _cloudwatch_transport(cluster, max_age)
        elif via == "ssm":
            yield _ssm_transport(cluster, ssh)
        else:
            access = _open_ssh_access(stack, ssh)
            if via == "controller":
                yield _controller_transport(access, cluster, controller)
            else:
                yield _ssh_transport(access)


def _auto_transport(
    stack: ExitStack,
    cluster: LiveCluster,
    ssh: SshSettings,
    max_age: float,
    controller: Optional[str],
    say: Callable[[str], None],
) -> Transport:
    """Return a transport that tries every way. Raises UsageError when the given login settings are wrong."""
    from hyperpod_kit.remote.connect.ssh_access import SshAccess
    from hyperpod_kit.remote.transports.auto_transport import AutoTransport, TransportOption

    access = stack.enter_context(SshAccess(ssh))
    if ssh.named:
        access.load_private_key_and_known_hosts()

    def over_ssh(answered: frozenset[str]) -> Transport:
        access.load_private_key_and_known_hosts()
        return _ssh_transport(access)

    def by_controller(answered: frozenset[str]) -> Transport:
        if controller is None and not any(
            target.role == Role.CONTROLLER and target.instance_id in answered for target in cluster.list_targets()
        ):
            raise Unreachable("it refuses the login as well")
        access.load_private_key_and_known_hosts()
        return _controller_transport(access, cluster, controller)

    return AutoTransport(
        (
            TransportOption("ssh", "ssh", over_ssh),
            TransportOption("controller", "the controller", by_controller),
            TransportOption("ssm", "SSM sessions", lambda answered: _ssm_transport(cluster, ssh), sample=SAMPLE),
            TransportOption(
                "pull",
                "their reports in CloudWatch",
                lambda answered: _cloudwatch_transport(cluster, max_age),
                late=True,
            ),
        ),
        say,
    )


def _open_ssh_access(stack: ExitStack, ssh: SshSettings) -> SshAccess:
    from hyperpod_kit.remote.connect.ssh_access import SshAccess

    access = stack.enter_context(SshAccess(ssh))
    access.load_private_key_and_known_hosts()
    return access


def _ssh_transport(access: SshAccess) -> Transport:
    from hyperpod_kit.remote.transports.ssh_transport import SshTransport

    return SshTransport(access)


def _controller_transport(access: SshAccess, cluster: LiveCluster, controller_address: Optional[str]) -> Transport:
    from hyperpod_kit.remote.transports.controller import ControllerTransport

    if controller_address:
        addresses = [controller_address]
    else:
        addresses = cluster.controller_addresses()
    return ControllerTransport(access, addresses)


def _cloudwatch_transport(cluster: LiveCluster, max_age: float) -> Transport:
    from hyperpod_kit.aws.logs import Logs
    from hyperpod_kit.remote.transports.cloudwatch_transport import CloudWatchTransport

    return CloudWatchTransport(Logs(cluster.region), cluster.name, cluster.arn, max_age)


def _ssm_transport(cluster: LiveCluster, ssh: SshSettings) -> Transport:
    from hyperpod_kit.remote.connect.ssm_access import create_ssm_sessions
    from hyperpod_kit.remote.transports.ssm_transport import SsmTransport

    return SsmTransport(create_ssm_sessions(cluster), ssh.connect_timeout + ssh.command_timeout)
