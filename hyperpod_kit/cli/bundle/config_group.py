"""config show and config schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Optional

import click

from hyperpod_kit.cli.terminal.lazy import SummaryGroup
from hyperpod_kit.cli.terminal.options import config_argument, json_option
from hyperpod_kit.cli.terminal.output import (
    print_document,
    print_json,
    print_to_stderr,
    print_unchanged_unless_terminal,
)
from hyperpod_kit.errors import Absent
from hyperpod_kit.untrusted import by_descriptor


@click.group(cls=SummaryGroup)
def config() -> None:
    """Show the effective configuration, or its JSON Schema for editors.

    \b
    Examples:
      hyperpod-kit config show --effective
      hyperpod-kit config schema --out provisioning_parameters.schema.json
    """


@config.command()
@config_argument
@click.option("--effective", "everything", is_flag=True, help="Include every default, marked as such.")
@json_option
def show(config: Path, everything: bool, as_json: bool) -> None:
    """Print the configuration as YAML.

    The output is a valid configuration with the same meaning; with --json it is the value of `configuration`. The
    command fails where `validate` would.

    \b
    Examples:
      hyperpod-kit config show
      hyperpod-kit config show --effective            # every key, defaults marked
      hyperpod-kit config show --effective --json     # for scripts
    """
    from hyperpod_kit.config import effective

    if everything:
        values, defaults = effective.load_effective_values(config)
    else:
        values, defaults = (effective.load_written_values(config), set())
    if as_json:
        print_json("config show", {"configuration": values})
    else:
        print_unchanged_unless_terminal(effective.render_yaml_marking_defaults(values, defaults))


@config.command()
@click.option(
    "--out",
    "output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write to FILE instead of stdout.",
)
def schema(output: Optional[Path]) -> None:
    """Print the JSON Schema of the configuration.

    Editors use it to complete keys, explain them and mark errors. Limits and lists of values, such as instance types,
    come from the installed botocore.

    \b
    Examples:
      hyperpod-kit config schema > schema.json
      hyperpod-kit config schema --out schema.json
    """
    from hyperpod_kit.config.schema import build_schema as built

    if output is None:
        print_document(built())
        return
    try:
        by_descriptor.write_text(output, json.dumps(built(), indent=2) + "\n")
    except OSError as err:
        raise Absent(f"cannot write {output}: {err.strerror}") from err
    print_to_stderr(
        f'wrote {output}; for completion in an editor, begin the configuration with "$schema": "./{output.name}"'
    )
