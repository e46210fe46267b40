"""What every command has that waits for a cluster: its options, what it shows meanwhile, what Ctrl-C leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Mapping, Optional, Sequence

import click

from hyperpod_kit.cli.output import say, watch
from hyperpod_kit.environment import HPK_POLL_INTERVAL

if TYPE_CHECKING:
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster.state import ClusterState

timeout_option = click.option(
    "--timeout", default=3600.0, show_default=True, type=click.FloatRange(1), help="Seconds to wait at most."
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


def until_ready(
    sagemaker: SageMaker,
    name: str,
    *,
    timeout: float,
    interval: float,
    desired: Optional[Mapping[str, int]] = None,
    stale: str = "",
    lacking: Callable[[], Sequence[str]] = tuple,
) -> ClusterState:
    """Wait with a line for every change. Raises as cluster.wait.wait_ready."""
    from hyperpod_kit.cluster.wait import wait_ready

    try:
        with watch() as show:
            return wait_ready(
                sagemaker,
                name,
                timeout=timeout,
                interval=interval,
                desired=desired,
                stale=stale,
                lacking=lacking,
                progress=lambda state: show(state.line()),
                note=show,
            )
    except KeyboardInterrupt:
        say(f"\nonly the waiting ends: what AWS was asked for goes on; next: hyperpod-kit wait --cluster {name}")
        raise


def until_gone(sagemaker: SageMaker, name: str, *, timeout: float, interval: float) -> None:
    """Wait until there is no such cluster. Raises as cluster.wait.wait_deleted."""
    from hyperpod_kit.cluster.wait import wait_deleted

    try:
        with watch() as show:
            wait_deleted(
                sagemaker,
                name,
                timeout=timeout,
                interval=interval,
                progress=lambda state: show(state.line()),
                note=show,
            )
    except KeyboardInterrupt:
        say(f"\nonly the waiting ends: the deletion goes on; next: hyperpod-kit delete-cluster --cluster {name} --wait")
        raise
