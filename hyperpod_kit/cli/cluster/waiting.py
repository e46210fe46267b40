"""What every command has that waits for a cluster: its options, what it shows meanwhile, what Ctrl-C leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Mapping, Optional, Sequence

import click

from hyperpod_kit.cli.terminal.output import live_status, print_to_stderr
from hyperpod_kit.environment import HPK_POLL_INTERVAL

if TYPE_CHECKING:
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster.state import ClusterState

timeout_option = click.option(
    "--timeout", default=3600.0, show_default=True, type=click.FloatRange(1), help="Maximum seconds to wait."
)
interval_option = click.option(
    "--interval",
    default=10.0,
    type=click.FloatRange(0.2),
    envvar=HPK_POLL_INTERVAL,
    show_default=True,
    show_envvar=True,
    help="Seconds between two polls.",
)


def wait_until_ready(
    sagemaker: SageMaker,
    name: str,
    *,
    timeout: float,
    interval: float,
    desired: Optional[Mapping[str, int]] = None,
    stale_failure: str = "",
    list_missing: Callable[[], Sequence[str]] = tuple,
) -> ClusterState:
    """Wait until the cluster is ready, with a line on stderr for every change.

    Raises as cluster.wait.wait_ready.
    """
    from hyperpod_kit.cluster.command_arguments import cluster_arguments
    from hyperpod_kit.cluster.wait import wait_ready

    try:
        with live_status() as show:
            return wait_ready(
                sagemaker,
                name,
                timeout=timeout,
                interval=interval,
                desired=desired,
                stale_failure=stale_failure,
                list_missing=list_missing,
                progress=lambda state: show(state.line()),
                note=show,
            )
    except KeyboardInterrupt:
        print_to_stderr(
            "\nonly the waiting ended, AWS continues with the request; next: hyperpod-kit wait "
            + cluster_arguments(name, sagemaker.region)
        )
        raise


def wait_until_deleted(sagemaker: SageMaker, name: str, *, timeout: float, interval: float) -> None:
    """Wait until there is no such cluster, with a line on stderr for every change.

    Raises as cluster.wait.wait_deleted.
    """
    from hyperpod_kit.cluster.command_arguments import cluster_arguments
    from hyperpod_kit.cluster.wait import wait_deleted

    try:
        with live_status() as show:
            wait_deleted(
                sagemaker,
                name,
                timeout=timeout,
                interval=interval,
                progress=lambda state: show(state.line()),
                note=show,
            )
    except KeyboardInterrupt:
        print_to_stderr(
            "\nonly the waiting ended, the deletion continues; next: hyperpod-kit delete-cluster "
            f"{cluster_arguments(name, sagemaker.region)} --wait"
        )
        raise
