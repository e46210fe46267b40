"""Arguments and options that several commands share, and what they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, TypeVar

import click

from hyperpod_kit.errors import UsageError

if TYPE_CHECKING:
    from hyperpod_kit.config.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT_CONFIG = "provisioning_parameters.json"

config_argument = click.argument("config", default=DEFAULT_CONFIG, type=click.Path(path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Data on stdout, in JSON.")


_cluster_option = click.option(
    "--cluster", metavar="NAME", help="A cluster by name; no configuration file is needed then."
)
_region_option = click.option("--region", help="AWS region; default: the configuration's, else AWS_DEFAULT_REGION.")


def cluster_options(command: Command) -> Command:
    """CONFIG, --cluster and --region: which cluster a command is about."""
    return config_argument(_cluster_option(_region_option(command)))


def cluster_of_nodes(command: Command) -> Command:
    """The same where the arguments are nodes: --config in place of CONFIG."""
    config = click.option(
        "--config",
        default=DEFAULT_CONFIG,
        show_default=True,
        type=click.Path(path_type=Path),
        help="The configuration that names the cluster.",
    )
    return config(_cluster_option(_region_option(command)))


class Cluster(NamedTuple):
    """A cluster that was named on the command line. `settings`: None when only --cluster named it."""

    name: str
    region: Optional[str]
    settings: Optional[Settings]


def resolve_cluster(config: Path, cluster: Optional[str], region: Optional[str]) -> Cluster:
    """The cluster of --cluster, or of the configuration. Raises UsageError, ConfigError."""
    from hyperpod_kit.config.load import load

    written = click.get_current_context().get_parameter_source("config") is not click.core.ParameterSource.DEFAULT
    if cluster is None and not config.exists():
        raise UsageError(
            f"which cluster? There is no {config} here", hint="--cluster NAME, or name the configuration file"
        )
    settings = load(config) if cluster is None or written else None
    if settings is None and cluster is not None and config.exists():
        # The file that lies here counts when it is about the same cluster; when it is broken it does not matter.
        from hyperpod_kit.errors import ConfigError

        try:
            found = load(config)
            settings = found if found.cluster.name == cluster else None
        except ConfigError:
            settings = None
    if settings is None:
        assert cluster is not None
        return Cluster(cluster, region, None)
    return Cluster(cluster or settings.cluster.name, region or settings.cluster.region, settings)
