"""The table of commands, and the group of click that has them."""

from __future__ import annotations

import os
from typing import Optional

import click

from hyperpod_kit.cli.terminal.lazy import CommandEntry, LazyGroup
from hyperpod_kit.exit_codes import SUMMARY
from hyperpod_kit.version import version

PROGRAM = "hyperpod-kit"
_C = "hyperpod_kit.cli"
SECTIONS = {
    "Configuration and bundle": {
        "init": CommandEntry(f"{_C}.bundle.init_command:init", "Create a configuration file."),
        "config": CommandEntry(
            f"{_C}.bundle.config_group:config", "Show the effective configuration, or its JSON Schema."
        ),
        "validate": CommandEntry(
            f"{_C}.bundle.validate_command:validate", "Check a configuration, offline or against AWS."
        ),
        "policy": CommandEntry(
            f"{_C}.bundle.policy_command:policy", "Print the minimal IAM policies for the nodes' role."
        ),
        "infra": CommandEntry(f"{_C}.bundle.infra_commands:infra", "Print a template of network, storage and roles."),
        "describe-package": CommandEntry(
            f"{_C}.bundle.package_command:describe_package", "Print the configuration entry for a client .deb."
        ),
        "render": CommandEntry(f"{_C}.bundle.bundle_commands:render", "Write the lifecycle bundle to a directory."),
        "diff": CommandEntry(f"{_C}.nodes.diff_command:diff", "Compare the configuration with S3 and the nodes."),
        "upload": CommandEntry(f"{_C}.bundle.bundle_commands:upload", "Upload the lifecycle bundle to S3."),
    },
    "Cluster": {
        "create-cluster": CommandEntry(f"{_C}.cluster.cluster_commands:create_cluster", "Create the cluster."),
        "update-cluster": CommandEntry(
            f"{_C}.cluster.update_command:update_cluster", "Apply the configuration to the cluster."
        ),
        "update-software": CommandEntry(
            f"{_C}.cluster.software_command:update_software", "Update the AMI of the nodes."
        ),
        "rollout": CommandEntry(
            f"{_C}.cluster.rollout_commands:rollout", "Install a new bundle on running nodes, or undo it."
        ),
        "wait": CommandEntry(f"{_C}.cluster.cluster_commands:wait", "Wait until every node is running."),
        "describe-cluster": CommandEntry(
            f"{_C}.cluster.cluster_commands:describe_cluster", "Show the status, groups and failures."
        ),
        "list-clusters": CommandEntry(f"{_C}.cluster.list_commands:list_clusters", "List the clusters of a region."),
        "list-cluster-nodes": CommandEntry(
            f"{_C}.cluster.list_commands:list_cluster_nodes", "List the nodes with their addresses and states."
        ),
        "replace-node": CommandEntry(f"{_C}.cluster.node_commands:replace_node", "Replace nodes with new ones."),
        "reboot-node": CommandEntry(
            f"{_C}.cluster.node_commands:reboot_node", "Reboot nodes; data on their disks is kept."
        ),
        "delete-node": CommandEntry(f"{_C}.cluster.node_commands:delete_node", "Delete nodes without replacing them."),
        "health-check": CommandEntry(
            f"{_C}.cluster.node_commands:health_check", "Start AWS's deep health check on nodes."
        ),
        "operations": CommandEntry(
            f"{_C}.cluster.operations_command:operations", "List the scalings and deep health checks."
        ),
        "events": CommandEntry(f"{_C}.cluster.events_command:events", "Show what HyperPod did, what failed, and why."),
        "connect": CommandEntry(f"{_C}.nodes.connect_command:connect", "Open a shell on a node, through SSM or ssh."),
        "delete-cluster": CommandEntry(
            f"{_C}.cluster.cluster_commands:delete_cluster", "Delete the cluster and its nodes."
        ),
        "validate-mounts": CommandEntry(
            f"{_C}.nodes.mounts_command:validate_mounts", "Check every mount on every node."
        ),
        "fleet": CommandEntry(f"{_C}.nodes.fleet_command:fleet", "Show nodes, jobs and storage on one screen."),
        "diagnose": CommandEntry(
            f"{_C}.nodes.diagnose_command:diagnose", "Explain why a node is unhealthy and what to do."
        ),
        "support-bundle": CommandEntry(
            f"{_C}.nodes.support_bundle_command:support_bundle", "Collect what a bug report needs, without secrets."
        ),
    },
    "Users": {
        "users": CommandEntry(f"{_C}.cluster.users_commands:users", "Manage home directories on EFS."),
    },
    "Jobs and checkpoints": {
        "job": CommandEntry(
            "hyperpod_kit.job.program.command_table:JOB",
            "Run training jobs that resume after a failure.",
            "hyperpod_kit.job.cli:main",
        ),
        "checkpoint": CommandEntry(
            "hyperpod_kit.checkpoint.cli:CHECKPOINT",
            "List, verify, prune, export and measure checkpoints.",
            "hyperpod_kit.checkpoint.cli:main",
        ),
        "fan-out": CommandEntry(
            "hyperpod_kit.job.fan_out.command:FAN_OUT",
            "Copy a model to the local disks of a job's nodes.",
            "hyperpod_kit.job.fan_out.command:main",
        ),
    },
    "Training data": {
        "data": CommandEntry(
            "hyperpod_kit.data.cli:DATA",
            "Index training data, and verify what was read.",
            "hyperpod_kit.data.cli:perform",
        ),
    },
    "Storage": {
        "storage": CommandEntry(f"{_C}.storage_commands:storage", "Plan, measure and manage storage."),
    },
    "Without AWS": {
        "rehearse": CommandEntry("hyperpod_rehearsal.cli.commands:rehearse", "Run a HyperPod cluster on this machine."),
    },
    "This program": {
        "explain": CommandEntry(f"{_C}.explain_command:explain", "Explain an error code or an exit code."),
        "completion": CommandEntry(
            f"{_C}.completion_command:completion", "Print the completion script for bash, zsh or fish."
        ),
    },
}
ELSEWHERE = {
    "node": (
        "`hyperpod-kit node` runs on the nodes of a cluster, not on this machine",
        "run it there with hyperpod-kit connect NODE; validate-mounts and diagnose query all nodes from here",
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
@click.option("--debug", is_flag=True, help="Show the stack trace of an error. Also accepted after the command.")
@click.option("--profile", metavar="NAME", help="AWS profile to use; default: AWS_PROFILE.")
def cli(debug: bool, profile: Optional[str]) -> None:
    """Keep Slurm training clusters on SageMaker HyperPod productive.

    Mounts are repaired, jobs resume from the newest valid checkpoint, and every restored byte is verified.
    """
    if profile is not None:
        os.environ["AWS_PROFILE"] = profile
