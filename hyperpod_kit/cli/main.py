"""The command line: the table of commands. terminal/command_ending.py turns errors into sentences and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Optional, Sequence

import click

from hyperpod_kit.cli.terminal.command_ending import run_reporting_errors
from hyperpod_kit.cli.terminal.lazy import CommandEntry, LazyGroup
from hyperpod_kit.ending import restore_sigint_if_ignored
from hyperpod_kit.exit_codes import SUMMARY, ExitCode
from hyperpod_kit.version import version

PROGRAM = "hyperpod-kit"
_C = "hyperpod_kit.cli"
SECTIONS = {
    "Configuration and bundle": {
        "init": CommandEntry(f"{_C}.bundle.init_command:init", "Write a configuration to start from."),
        "config": CommandEntry(
            f"{_C}.bundle.config_group:config", "Show the effective configuration, or its JSON Schema."
        ),
        "validate": CommandEntry(
            f"{_C}.bundle.validate_command:validate", "Check a configuration, offline or against AWS."
        ),
        "policy": CommandEntry(f"{_C}.bundle.policy_command:policy", "The least IAM policies of the nodes' role."),
        "infra": CommandEntry(f"{_C}.bundle.infra_commands:infra", "A template of network, storage and roles."),
        "describe-package": CommandEntry(
            f"{_C}.bundle.package_command:describe_package", "Print the configuration entry for a client .deb."
        ),
        "render": CommandEntry(f"{_C}.bundle.bundle_commands:render", "Write the lifecycle bundle to a directory."),
        "diff": CommandEntry(
            f"{_C}.nodes.diff_command:diff", "Compare the configuration with S3 and with what nodes run."
        ),
        "upload": CommandEntry(f"{_C}.bundle.bundle_commands:upload", "Put the lifecycle bundle into its bucket."),
    },
    "Cluster": {
        "create-cluster": CommandEntry(f"{_C}.cluster.cluster_commands:create_cluster", "Create the cluster."),
        "update-cluster": CommandEntry(
            f"{_C}.cluster.update_command:update_cluster", "Bring the cluster to the configuration."
        ),
        "update-software": CommandEntry(
            f"{_C}.cluster.software_command:update_software", "Give nodes a newer AMI; they are set up anew."
        ),
        "rollout": CommandEntry(f"{_C}.cluster.rollout_commands:rollout", "A bundle to nodes that run, and back."),
        "wait": CommandEntry(f"{_C}.cluster.cluster_commands:wait", "Wait until every node runs."),
        "describe-cluster": CommandEntry(
            f"{_C}.cluster.cluster_commands:describe_cluster", "Status, groups and failures."
        ),
        "list-clusters": CommandEntry(f"{_C}.cluster.list_commands:list_clusters", "Every cluster of a region."),
        "list-cluster-nodes": CommandEntry(
            f"{_C}.cluster.list_commands:list_cluster_nodes", "Every node with its address and state."
        ),
        "replace-node": CommandEntry(f"{_C}.cluster.node_commands:replace_node", "Replace nodes by fresh ones."),
        "reboot-node": CommandEntry(
            f"{_C}.cluster.node_commands:reboot_node", "Restart nodes; what is on their disks stays."
        ),
        "delete-node": CommandEntry(
            f"{_C}.cluster.node_commands:delete_node", "Delete nodes; nothing takes their place."
        ),
        "health-check": CommandEntry(
            f"{_C}.cluster.node_commands:health_check", "Have AWS test the hardware of nodes; no job starts meanwhile."
        ),
        "operations": CommandEntry(
            f"{_C}.cluster.operations_command:operations", "Scalings and deep health checks, and how they stand."
        ),
        "events": CommandEntry(
            f"{_C}.cluster.events_command:events", "What HyperPod did and what failed, with its reasons."
        ),
        "connect": CommandEntry(f"{_C}.nodes.connect_command:connect", "A shell on a node, by an SSM session or ssh."),
        "delete-cluster": CommandEntry(
            f"{_C}.cluster.cluster_commands:delete_cluster", "Delete the cluster and its nodes."
        ),
        "validate-mounts": CommandEntry(
            f"{_C}.nodes.mounts_command:validate_mounts", "Check every mount on every node."
        ),
        "fleet": CommandEntry(f"{_C}.nodes.fleet_command:fleet", "Nodes, jobs and storage at one look."),
        "diagnose": CommandEntry(
            f"{_C}.nodes.diagnose_command:diagnose", "Why a node is not well, and what to do about it."
        ),
        "support-bundle": CommandEntry(
            f"{_C}.nodes.support_bundle_command:support_bundle", "One archive for a report of a fault, without secrets."
        ),
    },
    "Users": {
        "users": CommandEntry(
            f"{_C}.cluster.users_commands:users", "Homes on EFS: access points and the file system's policy."
        ),
    },
    "Jobs and checkpoints": {
        "job": CommandEntry(
            "hyperpod_kit.job.program.command_table:JOB",
            "Run a training job that comes back by itself.",
            "hyperpod_kit.job.cli:main",
        ),
        "checkpoint": CommandEntry(
            "hyperpod_kit.checkpoint.cli:CHECKPOINT",
            "List, verify, prune, export and measure checkpoints.",
            "hyperpod_kit.checkpoint.cli:main",
        ),
        "fan-out": CommandEntry(
            "hyperpod_kit.job.fan_out.command:FAN_OUT",
            "Copy a model to the disks of a job's nodes.",
            "hyperpod_kit.job.fan_out.command:main",
        ),
    },
    "Training data": {
        "data": CommandEntry(
            "hyperpod_kit.data.cli:DATA",
            "Index data, and prove that every sample was trained on once.",
            "hyperpod_kit.data.cli:perform",
        ),
    },
    "Storage": {
        "storage": CommandEntry(
            f"{_C}.storage_commands:storage", "Which storage for which job, how fast it is, and who fills it."
        ),
    },
    "Without AWS": {
        "rehearse": CommandEntry("hyperpod_rehearsal.cli.commands:rehearse", "A HyperPod cluster on this machine."),
    },
    "This program": {
        "explain": CommandEntry(f"{_C}.explain_command:explain", "What a code means, and what to do about it."),
        "completion": CommandEntry(
            f"{_C}.completion_command:completion", "Print the completion script for bash, zsh or fish."
        ),
    },
}
FOREIGN_LINES = (("job", "submit"), ("connect",))
"""Commands that pass on words in which no `--` need stand."""
ELSEWHERE = {
    "node": (
        "`hyperpod-kit node` is on the cluster's nodes, not on this machine",
        "hyperpod-kit connect NODE, and the same words there; validate-mounts and diagnose ask all nodes from here",
    )
}


def _print_version_and_exit(context: click.Context, _: click.Parameter, is_requested: bool) -> None:
    if is_requested and not context.resilient_parsing:
        from hyperpod_kit.cli.terminal.output import print_text

        print_text(f"{PROGRAM}, version {version()}")
        context.exit()


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    elsewhere=ELSEWHERE,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=SUMMARY,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version_and_exit,
    help="Show the version and exit.",
)
@click.option("--debug", is_flag=True, help="Show the stack trace of an error. It may also stand behind the command.")
@click.option("--profile", metavar="NAME", help="Profile of the AWS configuration; default: AWS_PROFILE.")
def cli(debug: bool, profile: Optional[str]) -> None:
    """Training clusters on Slurm and SageMaker HyperPod.

    Storage that stays mounted, jobs that come back, checkpoints that are never wrong.
    """
    if profile is not None:
        os.environ["AWS_PROFILE"] = profile


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the program and exit. `argv`: words after the program's name."""
    restore_sigint_if_ignored()
    if argv is None:
        argv = sys.argv[1:]
    code = run_command_line(list(argv))
    if code == ExitCode.STOPPED:
        # Threads that still wait for AWS or a node would hold the prompt for a minute. What they do is safe to cut off.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code."""
    debug, remaining = _extract_debug_flag(arguments)
    return run_reporting_errors(
        lambda: cli.main(remaining, prog_name=PROGRAM, standalone_mode=False), with_traceback=debug
    )


def _extract_debug_flag(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether --debug is among our own arguments, and the arguments without it.

    What stands behind `--`, or in a line for sbatch, belongs to another program and is left as it is.
    """
    if "--" in arguments:
        foreign = arguments.index("--")
    else:
        foreign = len(arguments)
    for command in FOREIGN_LINES:
        if list(arguments[: len(command)]) == list(command):
            foreign = 0
    kept = [word for index, word in enumerate(arguments) if index >= foreign or word != "--debug"]
    return len(kept) < len(arguments), kept


if __name__ == "__main__":
    main()
