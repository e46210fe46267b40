"""How validate-mounts reaches the nodes: the transport of each word that --via takes."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Iterator, Optional

from hyperpod_kit.cli.options import Cluster
from hyperpod_kit.errors import UsageError

if TYPE_CHECKING:
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.remote.target import SshSettings
    from hyperpod_kit.remote.transport import Transport


@contextmanager
def opened(
    via: str,
    chosen: Cluster,
    sagemaker: SageMaker,
    ssh: SshSettings,
    max_age: float,
    controller: Optional[str],
) -> Iterator[Transport]:
    """The transport, closed at the end. Raises UsageError, AwsError, Unreachable."""
    if via == "pull":
        yield _pull(chosen, sagemaker, max_age)
        return
    if via == "ssm":
        yield _ssm(chosen, sagemaker, ssh)
        return
    from hyperpod_kit.remote.controller import ControllerTransport
    from hyperpod_kit.remote.ssh_access import SshAccess
    from hyperpod_kit.remote.ssh_transport import SshTransport

    with SshAccess(ssh) as access:
        access.load()
        if via == "controller":
            yield ControllerTransport(access, controller or _controller(chosen, sagemaker))
        else:
            yield SshTransport(access)


def _controller(chosen: Cluster, sagemaker: SageMaker) -> str:
    """The private address of the controller. Raises UsageError when it is not known which node that is."""
    from hyperpod_kit.cli.ssh_options import targets_of

    for target in targets_of(chosen, sagemaker):
        if target.role == "controller" and target.address:
            return target.address
    raise UsageError(
        f"which node of {chosen.name} is the controller?",
        hint="--controller HOST, or name the configuration file, which says it",
    )


def _pull(chosen: Cluster, sagemaker: SageMaker, max_age: float) -> Transport:
    from hyperpod_kit.aws.logs import Logs
    from hyperpod_kit.remote.pull import PullTransport

    arn = str(sagemaker.describe_cluster(chosen.name)["ClusterArn"])
    return PullTransport(Logs(chosen.region), chosen.name, arn, max_age)


def _ssm(chosen: Cluster, sagemaker: SageMaker, ssh: SshSettings) -> Transport:
    from hyperpod_kit.aws.ssm import Ssm, session_request
    from hyperpod_kit.aws.ssm import target as ssm_target
    from hyperpod_kit.cluster.session import PLUGIN, plugin_start
    from hyperpod_kit.errors import HyperpodKitError
    from hyperpod_kit.remote.ssm_transport import SsmSession, SsmTransport
    from hyperpod_kit.remote.target import Target
    from hyperpod_kit.run import LocalRunner

    # Before any call: a session that nobody takes up stays open on the node.
    if shutil.which(PLUGIN) is None:
        raise UsageError(f"{PLUGIN} is not on PATH", hint="install it, or --via ssh, controller or pull")
    version = LocalRunner().run([PLUGIN, "--version"], timeout=10.0, check=False).stdout
    arn = str(sagemaker.describe_cluster(chosen.name)["ClusterArn"])
    ssm = Ssm(chosen.region)

    def begin(target: Target) -> SsmSession:
        request = session_request(ssm_target(arn, target.group, target.instance_id))
        token = ssm.start_session(request)

        def end() -> None:
            with suppress(HyperpodKitError):
                ssm.terminate_session(token["SessionId"])

        start = plugin_start(token, request, region=ssm.region, endpoint=ssm.endpoint, version=version)
        return SsmSession(start, end)

    return SsmTransport(begin, ssh.connect_timeout + ssh.command_timeout)
