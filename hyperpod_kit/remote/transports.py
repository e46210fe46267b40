"""How validate-mounts reaches the nodes: the transport of each word that --via takes."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Iterator, Optional

from hyperpod_kit.errors import UsageError

if TYPE_CHECKING:
    from hyperpod_kit.remote.live_cluster import LiveCluster
    from hyperpod_kit.remote.target import SshSettings
    from hyperpod_kit.remote.transport import Transport


@contextmanager
def opened(
    via: str,
    cluster: LiveCluster,
    ssh: SshSettings,
    max_age: float,
    controller: Optional[str],
) -> Iterator[Transport]:
    """The transport, closed at the end. Raises UsageError, AwsError, Unreachable."""
    if via == "pull":
        yield _pull(cluster, max_age)
        return
    if via == "ssm":
        yield _ssm(cluster, ssh)
        return
    from hyperpod_kit.remote.controller import ControllerTransport
    from hyperpod_kit.remote.ssh_access import SshAccess
    from hyperpod_kit.remote.ssh_transport import SshTransport

    with SshAccess(ssh) as access:
        access.load()
        if via == "controller":
            yield ControllerTransport(access, controller or cluster.controller())
        else:
            yield SshTransport(access)


def _pull(cluster: LiveCluster, max_age: float) -> Transport:
    from hyperpod_kit.aws.logs import Logs
    from hyperpod_kit.remote.cloudwatch_transport import CloudWatchTransport

    return CloudWatchTransport(Logs(cluster.region), cluster.name, cluster.arn, max_age)


def _ssm(cluster: LiveCluster, ssh: SshSettings) -> Transport:
    from hyperpod_kit.aws.ssm import Ssm, session_request
    from hyperpod_kit.aws.ssm import target as ssm_target
    from hyperpod_kit.cluster.session import PLUGIN, plugin_start
    from hyperpod_kit.errors import HyperpodKitError
    from hyperpod_kit.remote.ssm_transport import SsmSession, SsmTransport
    from hyperpod_kit.remote.target import NodeTarget
    from hyperpod_kit.run import LocalRunner

    # Before any call: a session that nobody takes up stays open on the node.
    if shutil.which(PLUGIN) is None:
        raise UsageError(f"{PLUGIN} is not on PATH", hint="install it, or --via ssh, controller or pull")
    version = LocalRunner().run([PLUGIN, "--version"], timeout=10.0, check=False).stdout
    arn = cluster.arn
    ssm = Ssm(cluster.region)

    def begin(target: NodeTarget) -> SsmSession:
        request = session_request(ssm_target(arn, target.group, target.instance_id))
        token = ssm.start_session(request)

        def end() -> None:
            with suppress(HyperpodKitError):
                ssm.terminate_session(token["SessionId"])

        start = plugin_start(token, request, region=ssm.region, endpoint=ssm.endpoint, version=version)
        return SsmSession(start, end)

    return SsmTransport(begin, ssh.connect_timeout + ssh.command_timeout)
