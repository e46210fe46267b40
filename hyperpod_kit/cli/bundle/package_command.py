"""describe-package."""

from __future__ import annotations

from pathlib import Path

import click

from hyperpod_kit.cli.terminal.output import print_document


@click.command("describe-package")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--client", default="", metavar="NAME", help="Client that the packages are for, when their names do not tell."
)
def describe_package(files: tuple[Path, ...], client: str) -> None:
    """Print the `hyperpod_kit.clients` entries for .deb files, as JSON.

    \b
    Examples:
      hyperpod-kit describe-package packages/*.deb
    """
    from hyperpod_kit.bundle.packages import make_client_entry_for_deb_file
    from hyperpod_kit.errors import UsageError
    from hyperpod_kit.model.clients import CLIENTS

    if client and client not in CLIENTS:
        raise UsageError(f"there is no client {client}", hint=f"use one of {', '.join(CLIENTS)}")
    print_document([make_client_entry_for_deb_file(path, client) for path in files])
