"""How nodes are reached over ssh: the options that every command has that asks them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, TypeVar

import click

from hyperpod_kit.cli.terminal.options import Cluster
from hyperpod_kit.environment import HPK_KNOWN_HOSTS, HPK_SSH_KEY, HPK_SSH_PORT, HPK_SSH_PROXY, HPK_SSH_USER

if TYPE_CHECKING:
    from hyperpod_kit.remote.live_cluster import LiveCluster

Command = TypeVar("Command", bound=Callable[..., Any])

_LOGIN = (
    click.option(
        "--ssh-user",
        default="ubuntu",
        show_default=True,
        envvar=HPK_SSH_USER,
        show_envvar=True,
        help="Login user on the nodes.",
    ),
    click.option(
        "--ssh-key",
        type=click.Path(path_type=Path),
        envvar=HPK_SSH_KEY,
        show_envvar=True,
        help="Private key; default: the agent and ~/.ssh.",
    ),
    click.option(
        "--ssh-port",
        default=22,
        show_default=True,
        envvar=HPK_SSH_PORT,
        show_envvar=True,
        help="Port of sshd on the nodes.",
    ),
    click.option(
        "--known-hosts",
        type=click.Path(path_type=Path),
        envvar=HPK_KNOWN_HOSTS,
        show_envvar=True,
        default=Path("~/.ssh/known_hosts"),
        show_default=True,
        help="File with the nodes' host keys; other keys are rejected.",
    ),
)
_OPTIONS = (
    *_LOGIN,
    click.option(
        "--ssh-proxy",
        default="",
        metavar="COMMAND",
        envvar=HPK_SSH_PROXY,
        show_envvar=True,
        help="Connect through COMMAND, like ssh's ProxyCommand; %h is the node, %p the port.",
    ),
    click.option(
        "--connect-timeout",
        default=10.0,
        show_default=True,
        type=click.FloatRange(0.1),
        help="Maximum seconds to log in to a node.",
    ),
)


def ssh_options(command: Command, *, timeout: float = 60.0, omit_timeout_option: bool = False) -> Callable[..., Any]:
    """Add all ssh options to a command, which gets them as one `ssh: SshSettings`.

    `timeout`: the default seconds for a node's own work; `omit_timeout_option`: add no --timeout,
    since the command's own means something else.
    """
    limit = click.option(
        "--timeout",
        default=timeout,
        show_default=True,
        type=click.FloatRange(1),
        help="Maximum seconds for the check on a node.",
    )

    @functools.wraps(command)
    def with_settings(
        *,
        ssh_user: str,
        ssh_key: Path | None,
        ssh_port: int,
        known_hosts: Path,
        ssh_proxy: str,
        connect_timeout: float,
        **options: Any,
    ) -> Any:
        from hyperpod_kit.remote.target import SshSettings

        if omit_timeout_option:
            seconds = timeout
        else:
            seconds = options.pop("timeout")

        key_path = None
        if ssh_key:
            key_path = ssh_key.expanduser()
        ssh = SshSettings(
            ssh_user,
            known_hosts.expanduser(),
            key_path,
            ssh_port,
            connect_timeout,
            seconds,
            ssh_proxy,
            any(_is_option_typed_or_in_environment(name) for name in ("ssh_key", "known_hosts", "ssh_proxy")),
        )
        return command(ssh=ssh, **options)

    for option in reversed((*_OPTIONS, *(() if omit_timeout_option else (limit,)))):
        with_settings = option(with_settings)
    return with_settings


def login_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the ssh options that ssh(1) takes too to a command, which gets them as one `login: SshLogin`."""

    @functools.wraps(command)
    def with_login(*, ssh_user: str, ssh_key: Path | None, ssh_port: int, known_hosts: Path, **options: Any) -> Any:
        from hyperpod_kit.cluster.session import SshLogin

        # Where nobody names a file, ssh looks into its own, the machine's among them.
        named = ""
        if _is_option_typed_or_in_environment("known_hosts"):
            named = str(known_hosts)
        return command(login=SshLogin(ssh_user, str(ssh_key or ""), named, ssh_port), **options)

    for option in reversed(_LOGIN):
        with_login = option(with_login)
    return with_login


def _is_option_typed_or_in_environment(name: str) -> bool:
    """Whether an option was typed or is in the environment."""
    source = click.get_current_context().get_parameter_source(name)
    return source not in (None, click.core.ParameterSource.DEFAULT)


def make_live_cluster(chosen: Cluster) -> LiveCluster:
    """Return the chosen cluster with an AWS client that many threads can use."""
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster.nodes import LOOKUPS
    from hyperpod_kit.remote.live_cluster import LiveCluster

    return LiveCluster(chosen.name, chosen.region, chosen.settings, SageMaker(chosen.region, connections=LOOKUPS))
