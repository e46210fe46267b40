"""`hyperpod-kit rehearse …`: a HyperPod on this machine."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Tuple

import click

from hyperpod_kit.cli.terminal import output
from hyperpod_kit.cli.terminal.lazy import SummaryGroup
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json
from hyperpod_rehearsal.cli.output import (
    Progress,
    format_sandbox_result,
    print_fidelity_table_and_implemented_calls,
    print_status,
)
from hyperpod_rehearsal.records.layout import DEFAULT_NAME
from hyperpod_rehearsal.records.profiles import PROFILES

_name_option = click.option("--name", default=DEFAULT_NAME, show_default=True, help="Name of the rehearsal.")


@click.group(cls=SummaryGroup)
def rehearse() -> None:
    """Run the same bundle on this machine, with nodes, Slurm, S3 and the SageMaker API, without an AWS account."""


@rehearse.command()
@_name_option
@click.option(
    "--share",
    "shares",
    multiple=True,
    metavar="DIR:/PATH",
    help="Directory of this machine to share with every node, read-only; repeatable.",
)
@click.option(
    "--cred-expire",
    default=10,
    show_default=True,
    type=click.IntRange(2, 600),
    help="Slurm's AuthInfo=cred_expire in seconds, which delays a requeued job.",
)
@click.option(
    "--slurmd-timeout",
    default=30,
    show_default=True,
    type=click.IntRange(10, 3600),
    help="Slurm's SlurmdTimeout in seconds.",
)
@click.option("--shm-size", default="2G", show_default=True, help="Size of each node's /dev/shm.")
@click.option(
    "--release",
    default="",
    metavar="CODENAME",
    help="Debian release of the nodes (bullseye, trixie, …); default: that of the profile.",
)
@click.option(
    "--profile",
    default="stock",
    show_default=True,
    type=click.Choice(list(PROFILES)),
    help="Kind of cluster: `stock` has this machine's Slurm, `today` and `newest` have later ones, `hyperpod` has "
    "HyperPod's retry, `hyperpod-2026` also two Slurms and the platform's agents.",
)
@click.option(
    "--tree",
    "trees",
    multiple=True,
    metavar="DIR",
    help="Directory whose content is copied to every node before its first boot; repeatable.",
)
@click.option("--quiet", is_flag=True, help="Do not print the fidelity table.")
def up(
    name: str,
    shares: Tuple[str, ...],
    cred_expire: int,
    slurmd_timeout: int,
    shm_size: str,
    release: str,
    profile: str,
    trees: Tuple[str, ...],
    quiet: bool,
) -> None:
    """Start the endpoint, the network and the control loop. Machines appear when a cluster is created.

    \b
    Examples:
      hyperpod-kit rehearse up
      hyperpod-kit rehearse up --release bullseye --shm-size 4G
      hyperpod-kit rehearse up --profile hyperpod
    """
    from hyperpod_rehearsal import boot
    from hyperpod_rehearsal.machines import host

    with Progress() as progress:
        layout, started = boot.start_rehearsal(
            name,
            shares,
            progress,
            cred_expire=cred_expire,
            slurmd_timeout=slurmd_timeout,
            shm_size=shm_size,
            release=release,
            trees=trees,
            profile=PROFILES[profile],
        )
    _, data = boot.require_running(name)
    if not quiet:
        print_fidelity_table_and_implemented_calls()
    warning = host.other_users_warning(host.other_login_users())
    if warning:
        output.print_to_stderr(warning)
    state = "up already"
    if started:
        state = "up"
    output.print_text(f"rehearsal {name} is {state}: {data['endpoint']} (state in {layout.root})")
    output.print_text(f'next: eval "$(hyperpod-kit rehearse env{_format_name_option(name)})"')


def _format_name_option(name: str) -> str:
    if name == DEFAULT_NAME:
        return ""
    return f" --name {name}"


@rehearse.command()
@_name_option
def env(name: str) -> None:
    """Print `export` lines that point hyperpod-kit, boto3 and AWS's CLI at the rehearsal.

    \b
    Examples:
      eval "$(hyperpod-kit rehearse env)"
    """
    from hyperpod_rehearsal import boot, targets

    layout, data = boot.require_running(name)
    for key, value in targets.shell_environment(layout, data).items():
        output.print_unchanged_unless_terminal(f"export {key}={shlex.quote(value)}")


@rehearse.command()
@_name_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def status(name: str, as_json: bool) -> None:
    """Show the clusters and machines of the rehearsal.

    \b
    Examples:
      hyperpod-kit rehearse status
    """
    from hyperpod_rehearsal import boot, targets

    _, data = boot.require_running(name)
    for cluster in data["clusters"]:
        for node in cluster["nodes"]:
            if targets.is_running(node):
                node["machine"] = "running"
            else:
                node["machine"] = "dead"
    if as_json:
        output.print_json("rehearse status", dict(sorted(data.items())))
        return
    print_status(data)


@rehearse.command("exec", context_settings={"ignore_unknown_options": True})
@_name_option
@click.argument("node")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def execute(name: str, node: str, command: Tuple[str, ...]) -> None:
    """Run COMMAND on NODE over ssh, or a login shell without COMMAND.

    NODE is an instance id, a host name, GROUP/INDEX, or `controller`.

    \b
    Examples:
      hyperpod-kit rehearse exec controller -- sinfo
      hyperpod-kit rehearse exec worker-group/0
    """
    from hyperpod_rehearsal import boot, targets

    layout, data = boot.require_running(name)
    if command:
        remote_command = [shlex.join(command)]
    else:
        remote_command = []
    argv = targets.ssh_command(
        layout, targets.find_node(data, node), remote_command, tty=sys.stdin.isatty() and sys.stdout.isatty()
    )
    # The command is the user's own and may run as long as it likes: ssh takes this process's place.
    os.execvp(argv[0], argv)


@rehearse.command("kill-node")
@_name_option
@click.argument("node")
def kill_node(name: str, node: str) -> None:
    """Kill the machine of NODE at once, like a power failure.

    \b
    Examples:
      hyperpod-kit rehearse kill-node worker-group/1
    """
    from hyperpod_rehearsal import boot, targets

    _, data = boot.require_running(name)
    machine = targets.find_node(data, node)
    targets.kill_machine(machine)
    output.print_text(f"killed {machine['place']}: {machine['host']} {machine['instance_id']}")


@rehearse.command("freeze-node")
@_name_option
@click.option("--thaw", is_flag=True, help="Resume the processes.")
@click.argument("node")
def freeze_node(name: str, node: str, thaw: bool) -> None:
    """Freeze every process of NODE, as if the machine hung.

    \b
    Examples:
      hyperpod-kit rehearse freeze-node worker-group/1
      hyperpod-kit rehearse freeze-node worker-group/1 --thaw
    """
    from hyperpod_rehearsal import boot, targets
    from hyperpod_rehearsal.machines import cgroups

    layout, data = boot.require_running(name)
    machine = targets.find_node(data, node)
    cgroups.set_group_frozen(f"{layout.cgroup}/{machine['instance_id']}", not thaw)
    verb = "froze"
    if thaw:
        verb = "thawed"
    output.print_text(f"{verb} {machine['place']}: {machine['host']} {machine['instance_id']}")


@rehearse.command("partition-node")
@_name_option
@click.option("--heal", is_flag=True, help="Reconnect the node.")
@click.argument("node")
def partition_node(name: str, node: str, heal: bool) -> None:
    """Disconnect NODE from the network; it keeps running.

    \b
    Examples:
      hyperpod-kit rehearse partition-node worker-group/1
      hyperpod-kit rehearse partition-node worker-group/1 --heal
    """
    from hyperpod_rehearsal import boot, targets
    from hyperpod_rehearsal.machines.network import set_node_link_state

    layout, data = boot.require_running(name)
    machine = targets.find_node(data, node)
    set_node_link_state(layout, machine["instance_id"], up=heal)
    verb = "cut off"
    if heal:
        verb = "connected"
    output.print_text(f"{verb} {machine['place']}: {machine['host']} {machine['instance_id']}")


@rehearse.command("break-mount")
@_name_option
@click.option("--undo", is_flag=True, help="Undo the fault: hang-daemon, read-only, other-target, cover.")
@click.argument(
    "fault", type=click.Choice(["kill-daemon", "hang-daemon", "unmount", "read-only", "other-target", "cover"])
)
@click.argument("node")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
def break_mount(name: str, fault: str, node: str, paths: Tuple[str, ...], undo: bool) -> None:
    """Break the mounts at PATH... of NODE, to test detection and repair.

    \b
    Examples:
      hyperpod-kit rehearse break-mount kill-daemon worker-group/0 /fsx
      hyperpod-kit rehearse break-mount read-only worker-group/0 /efs --undo
    """
    from hyperpod_rehearsal import boot, mount_faults, targets

    if undo and fault not in mount_faults.UNDO:
        raise click.UsageError(f"{fault} is not taken back: the node repairs it")
    layout, data = boot.require_running(name)
    for path in paths:
        at = mount_faults.mount_point_of_running_node(layout, targets.find_node(data, node), path)
        table = mount_faults.FAULTS
        if undo:
            table = mount_faults.UNDO
        done = table[fault](at)
        output.print_text(f"{path} of {at.node['place']}: {done}")


@rehearse.command("replace-node")
@_name_option
@click.argument("node")
def replace_node(name: str, node: str) -> None:
    """Replace NODE through the SageMaker API (BatchReplaceClusterNodes).

    \b
    Examples:
      hyperpod-kit rehearse replace-node worker-group/1
    """
    import boto3

    from hyperpod_kit.errors import RehearsalError
    from hyperpod_rehearsal import boot, targets
    from hyperpod_rehearsal.credentials.keys import Keys

    layout, data = boot.require_running(name)
    key = Keys.load(layout.root).admin
    machine = targets.find_node(data, node)
    client = boto3.client(
        "sagemaker",
        endpoint_url=data["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=key.id,
        aws_secret_access_key=key.secret,
    )
    response = client.batch_replace_cluster_nodes(ClusterName=machine["cluster"], NodeIds=[machine["instance_id"]])
    for failure in response["Failed"]:
        raise RehearsalError(f"{machine['place']} ({machine['instance_id']}) is not replaced: {failure['Message']}")
    output.print_text(f"replacing {machine['place']}: {machine['host']} {machine['instance_id']}")


@rehearse.command()
@_name_option
@click.argument("node")
def logs(name: str, node: str) -> None:
    """Print the logs of NODE: lifecycle script, provisioning, Slurm, console. NODE may no longer exist.

    \b
    Examples:
      hyperpod-kit rehearse logs worker-group/1
    """
    from hyperpod_rehearsal import boot, targets

    layout, data = boot.require_running(name)
    for title, text in targets.read_node_logs(layout, data, node):
        output.print_text(f"==> {title} <==")
        output.print_text(text)


@rehearse.command()
@_name_option
@click.option("--all", "everything", is_flag=True, help="Remove every rehearsal of this machine and leftovers.")
def down(name: str, everything: bool) -> None:
    """Remove the rehearsal: machines, mounts, network, data. Can be repeated, also after a crash.

    \b
    Examples:
      hyperpod-kit rehearse down
      hyperpod-kit rehearse down --all
    """
    from hyperpod_rehearsal import boot, cleanup

    if everything:
        for removed in cleanup.stop_and_remove_all_returning_names():
            output.print_text(f"rehearsal {removed} is down")
    elif boot.take_down_rehearsal(name):
        output.print_text(f"rehearsal {name} is down")
    else:
        output.print_text(f"rehearsal {name} was not up")


@rehearse.command()
@click.argument("config", default="provisioning_parameters.json", type=click.Path(dir_okay=False))
@click.option("--keep", is_flag=True, help="Keep the temporary root, and print its path.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def sandbox(config: str, keep: bool, as_json: bool) -> None:
    """Run the bundle of CONFIG in a temporary directory, without root: commands are recorded, nothing is mounted.

    \b
    Examples:
      hyperpod-kit rehearse sandbox
      hyperpod-kit rehearse sandbox --keep
    """
    from hyperpod_rehearsal.sandbox import sandbox as sandbox_module

    result = sandbox_module.run_sandbox(config, keep=keep)
    if as_json:
        output.print_json("rehearse sandbox", dataclass_to_json(result))
    else:
        for line in format_sandbox_result(result):
            output.print_text(line)
    if result.exit_code != 0:
        raise SystemExit(1)
