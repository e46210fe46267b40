"""How validate-mounts reaches the nodes: the transport of each word that --via takes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Iterator

from hyperpod_kit.cli.options import Cluster

if TYPE_CHECKING:
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.remote.target import SshSettings
    from hyperpod_kit.remote.transport import Transport


@contextmanager
def opened(
    via: str, chosen: Cluster, sagemaker: SageMaker, ssh: SshSettings, max_age: float
) -> Iterator[Transport]:
    """The transport, closed at the end. Raises UsageError, AwsError, Unreachable."""
    if via == "pull":
        yield _pull(chosen, sagemaker, max_age)
        return
    from hyperpod_kit.remote.ssh_access import SshAccess
    from hyperpod_kit.remote.ssh_transport import SshTransport

    with SshAccess(ssh) as access:
        access.load()
        yield SshTransport(access)


def _pull(chosen: Cluster, sagemaker: SageMaker, max_age: float) -> Transport:
    from hyperpod_kit.aws.log_events import LogEvents
    from hyperpod_kit.remote.pull import PullTransport

    arn = str(sagemaker.describe_cluster(chosen.name)["ClusterArn"])
    return PullTransport(LogEvents(chosen.region), chosen.name, arn, max_age)
