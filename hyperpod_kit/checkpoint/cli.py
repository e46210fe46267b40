"""`hyperpod-kit checkpoint`: what needs torch is sent to its own module, the rest to the torch-free program."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module

from hyperpod_kit import ending
from hyperpod_kit.checkpoint.commands import cli
from hyperpod_kit.command_line.specs import DeferredSpec
from hyperpod_kit.errors import MissingExtra
from hyperpod_kit.extras import require_sibling_distribution_installed, requirements_install_command

WITH_TORCH = (
    DeferredSpec(
        "bench",
        "Measure saves and restores against the limits of the machine.",
        "hyperpod_lab.checkpoint_bench.cli",
    ),
    DeferredSpec("diff", "Compare two checkpoints.", "hyperpod_kit.checkpoint.diffing.command"),
    DeferredSpec("export", "Export a checkpoint for other tools.", "hyperpod_kit.checkpoint.convert.export_command"),
    DeferredSpec(
        "import",
        "Import a checkpoint of another program.",
        "hyperpod_kit.checkpoint.convert.import_command",
    ),
    DeferredSpec("torture", "Test that no restore is ever wrong, under faults.", "hyperpod_lab.torture.cli"),
)
"""None of them ships to a node."""

CHECKPOINT = replace(
    cli.CHECKPOINT,
    summary="List, verify, prune, export and measure checkpoints.",
    commands=(*cli.CHECKPOINT.commands, *WITH_TORCH),
)


def main(argv: list[str]) -> int:
    """The exit code. Raises HyperpodKitError: `hyperpod-kit` says it, with the stack trace where that is asked for."""
    command = None
    if argv:
        command = CHECKPOINT.find_command(argv[0])
    if not isinstance(command, DeferredSpec):
        return cli.run_command_raising_errors(argv, CHECKPOINT)
    require_sibling_distribution_installed(command.module, f"hyperpod-kit checkpoint {command.name}")
    try:
        module = import_module(command.module)
    except ModuleNotFoundError as err:
        if err.name is None or err.name.split(".")[0] == "hyperpod_kit":
            raise
        raise MissingExtra(
            f"hyperpod-kit checkpoint {command.name} needs {err.name}, which is not installed",
            hint=requirements_install_command("torch"),
        ) from None
    return int(module.main(argv[1:]))


if __name__ == "__main__":
    sys.exit(ending.run_program_ending_on_ctrl_c(lambda: ending.run(lambda: main(sys.argv[1:]))))
