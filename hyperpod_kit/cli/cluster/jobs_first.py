"""The jobs on nodes that a command takes: shown before it asks, waited for where the user wants that."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

import click

from hyperpod_kit.cli.cluster.ssh_options import ssh_options
from hyperpod_kit.cli.terminal.output import print_to_stderr
from hyperpod_kit.errors import HyperpodKitError, Unreachable, UsageError
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.remote.draining.vacate import NodeJob, Vacated
    from hyperpod_kit.remote.live_cluster import LiveCluster
    from hyperpod_kit.remote.target import SshSettings
    from hyperpod_kit.run import Runner

MOST_SHOWN = 20
"""Jobs that a person is shown; --json has all of them."""


def drain_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --when-idle, --drain, --drain-timeout and the ssh options to a command, which gets them as
    `first: JobsFirst`."""

    @functools.wraps(command)
    def with_jobs(*, when_idle: bool, drain: bool, drain_timeout: float, ssh: SshSettings, **options: Any) -> Any:
        if when_idle and drain:
            raise UsageError("--when-idle waits for all jobs and --drain requeues some of them: choose one")
        with ExitStack() as stack:
            return command(first=JobsFirst(stack, ssh, when_idle, drain, drain_timeout), **options)

    for option in reversed(
        (
            click.option(
                "--when-idle",
                is_flag=True,
                help="Accept no new jobs on these nodes, and act when the running ones have ended.",
            ),
            click.option(
                "--drain",
                is_flag=True,
                help="As --when-idle, but requeue at once the jobs that Slurm may requeue.",
            ),
            click.option(
                "--drain-timeout",
                default=3600.0,
                show_default=True,
                type=click.FloatRange(1),
                help="Seconds to wait for jobs; after that nothing is sent, and the nodes accept jobs again.",
            ),
        )
    ):
        with_jobs = option(with_jobs)
    return ssh_options(with_jobs, omit_timeout_option=True)


class JobsFirst:
    """The jobs on the nodes of a command. `listing_error`: why they could not be listed, "" when they were;
    `asks_to_save`: whether jobs of `job run` are asked to save before they are queued again."""

    def __init__(self, stack: ExitStack, ssh: SshSettings, when_idle: bool, drain: bool, seconds: float) -> None:
        self._stack, self.ssh, self._drain, self._seconds = stack, ssh, drain, seconds
        self._runner: Optional[Runner] = None
        self._cluster: Optional[LiveCluster] = None
        self.is_requested = when_idle or drain
        self.asks_to_save = False
        self.jobs: list[NodeJob] = []
        self.listing_error = ""

    def ask_jobs_to_save(self) -> None:
        """Have jobs asked to save and queued again. Raises UsageError where something else was asked for."""
        if self.is_requested:
            raise UsageError("--requeue makes jobs save and requeues them: omit --when-idle and --drain")
        self.is_requested = self.asks_to_save = True

    def load_jobs_on_nodes(self, cluster: LiveCluster, node_names: Sequence[str]) -> None:
        """List the jobs on the nodes with these names in Slurm.

        Raises Unreachable where Slurm does not say and the user wants to wait for jobs.
        """
        from hyperpod_kit.remote.draining.vacate import jobs_on

        if not node_names:
            return
        self._cluster = cluster
        try:
            self._runner = self._stack.enter_context(open_runner_for_slurm(cluster, self.ssh))
            self.jobs = jobs_on(self._runner, node_names)
        except HyperpodKitError as err:
            if self.is_requested:
                raise Unreachable(
                    f"cannot wait for the jobs on these nodes: {err.message}",
                    hint="reach the controller with --ssh-key, --ssh-proxy or SSM, or leave out --when-idle and "
                    "--drain",
                ) from err
            self.listing_error = err.message

    def unlist_jobs_not_on_nodes(self, node_names: Sequence[str]) -> None:
        """Leave out the jobs that have none of these nodes: the others stay."""
        self.jobs = [job for job in self.jobs if set(node_names).intersection(job.nodes)]

    def print_jobs(self, nodes_text: str = "these nodes") -> None:
        """Print the jobs on the nodes on stderr, or why they could not be listed."""
        if self.listing_error:
            print_to_stderr(f"the jobs on {nodes_text} could not be listed: {self.listing_error}")
            return
        for job in self.jobs[:MOST_SHOWN]:
            print_to_stderr(job.to_line())
        if len(self.jobs) > MOST_SHOWN:
            print_to_stderr(f"and {counted(len(self.jobs) - MOST_SHOWN, 'more job')} (--json lists all)")
        if not self.jobs:
            print_to_stderr(f"no job runs on {nodes_text}")

    def confirmation_question_prefix(self, *, aws_chooses: bool = False) -> str:
        """Return what the question of the command begins with.

        `aws_chooses`: of these nodes some go, and AWS says which.
        """
        if self.listing_error:
            return "It is not known which jobs run there. "
        if not self.jobs:
            return ""
        count = counted(len(self.jobs), "job runs on", "jobs run on")
        if aws_chooses:
            return (
                f"{count} nodes of which AWS deletes some (--when-idle or --drain deletes idle ones first, and waits). "
            )
        if not self.is_requested:
            return f"{count} these nodes and will be ended (--when-idle or --drain waits). "
        return f"{count} these nodes; the command waits until no job runs there. "

    def to_dict(self) -> dict[str, Any]:
        """JSON form; `jobs` is null where they could not be listed."""
        from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json  # --help waits for no dataclass

        if self.listing_error:
            jobs = None
        else:
            jobs = [dataclass_to_json(job) for job in self.jobs]
        return {
            "jobs": jobs,
            "jobs_unknown": self.listing_error,
        }

    def vacate_if_requested(self, node_names: Sequence[str], command_name: str) -> Optional[Vacated]:
        """Wait until no job has these nodes, where the user wants that. Raises what remote.vacate.vacate raises."""
        from hyperpod_kit.remote.draining.vacate import Vacating, WaitLimit, vacate

        if not self.is_requested or self._runner is None or self._cluster is None:
            return None
        how = Vacating.WHEN_IDLE
        if self._drain:
            how = Vacating.DRAIN
        if self.asks_to_save:
            how = Vacating.REQUEUE
        with open_unsaved_snapshot_counter(self._cluster, self.ssh) as count_unsaved:
            return vacate(
                self._runner, node_names, how, command_name, WaitLimit(self._seconds), print_to_stderr, count_unsaved
            )

    def wait_for_restart_and_undrain(self, cluster: LiveCluster, vacated: Optional[Vacated], seconds: float) -> None:
        """Let jobs in again on nodes that have been restarted, once they are back; says so where they are not."""
        from hyperpod_kit.remote.draining.vacate import WaitLimit, undrain_after_restart

        if vacated is None or not vacated.drained:
            return
        print_to_stderr(f"waiting until {counted(len(vacated.drained), 'node is', 'nodes are')} back")
        try:
            # The controller may have been restarted with them.
            self._runner = self._stack.enter_context(open_runner_for_slurm(cluster, self.ssh))
            undrain_after_restart(self._runner, vacated, WaitLimit(seconds), print_to_stderr)
        except HyperpodKitError as err:
            raise type(err)(
                f"{err.message}; the nodes are still drained",
                hint=f"when they are back: scontrol update nodename={','.join(vacated.drained)} state=undrain",
            ) from err

    def vacated_without_nodes(self, vacated: Optional[Vacated], node_names: Sequence[str]) -> Optional[Vacated]:
        """Return `vacated` without these nodes, which AWS refused to act on."""
        from dataclasses import replace  # --help waits for no dataclass

        if vacated is None:
            return None
        return replace(vacated, drained=tuple(name for name in vacated.drained if name not in node_names))

    def undrain_nodes(self, vacated: Optional[Vacated], node_names: Optional[Sequence[str]] = None) -> None:
        """Undrain all vacated nodes, or those of these names, because nothing is done to them after all."""
        from hyperpod_kit.remote.draining.vacate import undrain_or_report_failure

        if vacated is not None and self._runner is not None:
            nodes = [name for name in vacated.drained if node_names is None or name in node_names]
            if nodes:
                undrain_or_report_failure(self._runner, nodes, vacated.reason, print_to_stderr)


def open_runner_for_slurm(cluster: LiveCluster, ssh: SshSettings) -> Any:
    """A context with a Runner of Slurm's commands there. Raises Unreachable, AwsError."""
    from hyperpod_kit.remote.draining.slurm_runner import open_slurm_runner

    return open_slurm_runner(cluster, ssh, print_to_stderr)


def open_unsaved_snapshot_counter(cluster: LiveCluster, ssh: SshSettings) -> Any:
    """A context with a function that counts unsaved captures on nodes. Raises AwsError, UsageError."""
    from hyperpod_kit.remote.draining.unsaved import open_unsaved_captures_counter

    return open_unsaved_captures_counter(cluster, ssh, print_to_stderr)
