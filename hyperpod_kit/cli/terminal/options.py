"""Arguments and options that several commands share, and what they stand for."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, TypeVar

import click

from hyperpod_kit.environment import HPK_CONFIG
from hyperpod_kit.errors import Absent
from hyperpod_kit.untrusted.text import clean_one_line

if TYPE_CHECKING:
    from hyperpod_kit.config.settings.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT_CONFIG = "provisioning_parameters.json"
CONFIG_SUFFIXES = (".json", ".yaml", ".yml")

config_argument = click.argument("config", default=DEFAULT_CONFIG, envvar=HPK_CONFIG, type=click.Path(path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")


def alert_options(command: Command) -> Command:
    """--alerts and --alerts-state of a check that sends alerts."""
    file = click.Path(path_type=Path, dir_okay=False)
    state = click.option(
        "--alerts-state", type=file, metavar="FILE", help="File that records which alerts were accepted."
    )
    return click.option(
        "--alerts", type=file, metavar="FILE", help="Send alerts to the recipients in FILE; see `storage quota check`."
    )(state(command))


def validate_cluster_name(_: click.Context, __: click.Parameter, value: Optional[str]) -> Optional[str]:
    """Return the value of an option if it is a cluster's name or ARN; raise click.BadParameter otherwise."""
    from hyperpod_kit.config.settings.patterns import CLUSTER_ARN, CLUSTER_NAME

    if value is not None and not re.fullmatch(f"{CLUSTER_NAME}|{CLUSTER_ARN}", value):
        raise click.BadParameter(
            f"`{clean_one_line(value, 100)}` is not a cluster name: expected letters, digits and hyphens"
        )
    return value


_cluster_option = click.option(
    "--cluster",
    metavar="NAME",
    callback=validate_cluster_name,
    help="Cluster name; makes the configuration file unnecessary.",
)
region_option = click.option("--region", help="AWS region; default: from the configuration, else AWS_DEFAULT_REGION.")


def cluster_options(command: Command) -> Command:
    """CONFIG, --cluster and --region: which cluster a command is about."""
    return config_argument(_cluster_option(region_option(command)))


def cluster_and_nodes_options(
    command: Callable[..., Any], *, required: bool = False, after: str = ""
) -> Callable[..., Any]:
    """Add `[CONFIG] [NODE…]`, --cluster and --region to a command, which gets `config` and `nodes`.

    No node is called like a file of CONFIG_SUFFIXES, so a first word with one of them is CONFIG.
    `required`: at least one node; `after`: what follows the nodes, for the usage.
    """

    @functools.wraps(command)
    def with_config(*, nodes: tuple[str, ...], **options: Any) -> Any:
        context = click.get_current_context()
        config = None
        if nodes and nodes[0].endswith(CONFIG_SUFFIXES):
            config, nodes = Path(nodes[0]), nodes[1:]
        if required and not nodes:
            raise click.UsageError("Missing argument 'NODE…'.", context)
        if config is not None:
            context.set_parameter_source("config", click.core.ParameterSource.COMMANDLINE)
        return command(config=config or Path(os.environ.get(HPK_CONFIG) or DEFAULT_CONFIG), nodes=nodes, **options)

    metavar = " ".join(filter(None, ("[CONFIG]", after or ("NODE…" if required else "[NODE…]"))))
    nodes = click.argument("nodes", nargs=-1, required=required, metavar=metavar)
    return nodes(_cluster_option(region_option(with_config)))


class Cluster(NamedTuple):
    """A cluster that was named on the command line. `settings`: None when only --cluster named it."""

    name: str
    region: Optional[str]
    settings: Optional[Settings]


def resolve_cluster(config: Path, cluster: Optional[str], region: Optional[str]) -> Cluster:
    """The cluster of --cluster, or of the configuration. Raises Absent, ConfigError."""
    from hyperpod_kit.config.load import load

    source = click.get_current_context().get_parameter_source("config")
    written = source is click.core.ParameterSource.COMMANDLINE
    if cluster is None and not config.exists():
        raise Absent(
            f"specify a cluster: there is no file {config}",
            hint="--cluster NAME, or the path of the configuration file",
        )
    settings = None
    if cluster is None or written:
        settings = load(config)
    if settings is None and cluster is not None and config.exists():
        # The file that lies here counts when it is about the same cluster; when it is broken it does not matter.
        from hyperpod_kit.errors import ConfigError

        try:
            configured = load(config)
            settings = None
            if configured.cluster.name == cluster:
                settings = configured
        except ConfigError:
            settings = None
    if settings is None:
        assert cluster is not None
        return Cluster(cluster, region, None)
    return Cluster(cluster or settings.cluster.name, region or settings.cluster.region, settings)
