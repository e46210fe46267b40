"""connect."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import click

from hyperpod_kit.cli.cluster.ssh_options import login_options
from hyperpod_kit.cli.terminal.options import cluster_and_nodes_options, json_option, resolve_cluster
from hyperpod_kit.cli.terminal.output import print_json, print_to_stderr, print_unchanged_unless_terminal

if TYPE_CHECKING:
    from hyperpod_kit.cluster.nodes import ClusterNode
    from hyperpod_kit.cluster.session import Program, SshLogin


@click.command("connect")
@functools.partial(cluster_and_nodes_options, after="[NODE] [COMMAND…]")
@click.option("--ssh", "over_ssh", is_flag=True, help="Use ssh to the node's address instead of SSM.")
@click.option("--ssh-config", "as_config", is_flag=True, help="Print a Host block for each node, for ~/.ssh/config.")
@click.option(
    "--proxy",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    help="For ssh's ProxyCommand: forward stdin and stdout to PORT of the node through SSM.",
)
@click.option("--dry-run", is_flag=True, help="Print the command, and run nothing.")
@login_options
@json_option
def connect(
    config: Path,
    nodes: tuple[str, ...],
    cluster: Optional[str],
    region: Optional[str],
    over_ssh: bool,
    as_config: bool,
    proxy: Optional[int],
    dry_run: bool,
    login: SshLogin,
    as_json: bool,
) -> None:
    """Open a shell on a node, through AWS Systems Manager or ssh.

    NODE is an instance id, an address, a host name as in Slurm, or GROUP/INDEX; the default is the Slurm controller.
    CONFIG ends in .json, .yaml or .yml. A session needs session-manager-plugin on this machine, but not the AWS CLI.
    COMMAND requires --ssh and follows `--`.

    \b
    Examples:
      hyperpod-kit connect
      hyperpod-kit connect worker-group/0
      hyperpod-kit connect --ssh-config >> ~/.ssh/config  # then: ssh demo-worker-group-0
      hyperpod-kit connect worker-group/0 --ssh -- nvidia-smi
      hyperpod-kit connect worker-group/0 --dry-run  # print the aws command
    """
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster import session
    from hyperpod_kit.cluster.nodes import LOOKUPS, list_nodes, resolve_nodes
    from hyperpod_kit.errors import UsageError

    node, command = nodes[0] if nodes else None, nodes[1:]
    if command and not over_ssh:
        raise UsageError(
            "an SSM session accepts no command", hint="use --ssh -- COMMAND, or open the session and type the command"
        )
    chosen = resolve_cluster(config, cluster, region)
    sagemaker = SageMaker(chosen.region, connections=LOOKUPS)
    live = sagemaker.describe_cluster(chosen.name)
    listed = list_nodes(sagemaker, chosen.name)
    if as_config:
        selected_ids = [
            member.instance_id
            for member in (resolve_nodes(listed, [node]) if node else listed)
            if not member.is_shutting_down_or_gone
        ]
        program = shutil.which("hyperpod-kit") or "hyperpod-kit"
        text = session.render_ssh_config(
            chosen.name, sagemaker.region, listed, selected_ids, login, program=program, direct=over_ssh
        )
        if as_json:
            print_json("connect", {"cluster": chosen.name, "ssh_config": text})
        else:
            print_unchanged_unless_terminal(text)
        return
    controller = None
    if chosen.settings:
        controller = chosen.settings.parameters.controller_group
    if node:
        target = resolve_nodes(listed, [node])[0]
    else:
        target = session.choose_default_node(listed, live, controller)
    session.require_not_removed(target)
    if over_ssh:
        _exec_or_print_program(session.ssh_program(target, login, command), target, dry_run, as_json)
        return
    request = session.ssm_session_request(target, live, proxy)
    if dry_run:
        _exec_or_print_program(
            session.Program(session.aws_cli_session_command(request, sagemaker.region)), target, dry_run, as_json
        )
        return
    _exec_or_print_program(_start_ssm_session_and_make_program(request, chosen.region), target, dry_run, as_json)


def _start_ssm_session_and_make_program(request: dict[str, Any], region: Optional[str]) -> Program:
    """Start an SSM session and return the program that connects to it. Raises AwsError, Unreachable."""
    from hyperpod_kit.aws.ssm import Ssm
    from hyperpod_kit.cluster.session import PLUGIN, session_plugin_program
    from hyperpod_kit.errors import Unreachable
    from hyperpod_kit.run import LocalRunner

    # Before the call: a session that nobody takes up stays open on the node.
    if shutil.which(PLUGIN) is None:
        raise Unreachable(
            f"{PLUGIN} is not on PATH",
            hint="install it (docs.aws.amazon.com/systems-manager, Session Manager plugin), or use --ssh where the "
            "node's address can be reached",
        )
    version = LocalRunner().run([PLUGIN, "--version"], timeout=10.0, check=False).stdout
    ssm = Ssm(region)
    token = ssm.start_session(request)
    return session_plugin_program(token, request, region=ssm.region, endpoint=ssm.endpoint, version=version)


def _exec_or_print_program(program: Program, node: ClusterNode, dry_run: bool, as_json: bool) -> None:
    """Replace this process by the program, so that Ctrl-C and the window's size are its own; with
    `dry_run` print it.

    Raises Unreachable when it cannot be started.
    """
    from hyperpod_kit.errors import Unreachable

    if dry_run:
        if as_json:
            print_json("connect", {"node": node.instance_id, "group": node.group, "command": list(program.argv)})
        else:
            print_unchanged_unless_terminal(shlex.join(program.argv))
        return
    if sys.stderr.isatty():
        print_to_stderr(f"{node.group} {node.instance_id}")
    try:
        os.execvpe(program.argv[0], program.argv, {**os.environ, **program.environment})
    except OSError as err:
        raise Unreachable(f"{program.argv[0]} cannot be started: {err.strerror}") from err
