"""`hyperpod-kit checkpoint`: what needs torch is sent to its own module, the rest to the torch-free program."""

from __future__ import annotations

import sys
from importlib import import_module

from hyperpod_kit import ending
from hyperpod_kit.errors import MissingExtra
from hyperpod_kit.extras import require_sibling_distribution_installed, requirements_install_command

WITH_TORCH = {
    "bench": "hyperpod_lab.checkpoint_bench.cli",
    "diff": "hyperpod_kit.checkpoint.diffing.command",
    "export": "hyperpod_kit.checkpoint.convert.export_command",
    "import": "hyperpod_kit.checkpoint.convert.import_command",
    "torture": "hyperpod_lab.torture.cli",
}
"""Command -> the module whose `main(argv) -> int` serves it. None of them ships to a node."""


def main(argv: list[str]) -> int:
    """The exit code. Raises HyperpodKitError: `hyperpod-kit` says it, with the stack trace where that is asked for."""
    command = ""
    if argv:
        command = argv[0]
    if command not in WITH_TORCH:
        from hyperpod_kit.checkpoint.commands import cli

        return cli.run_command_raising_errors(argv, other_commands_for_help=sorted(WITH_TORCH))
    require_sibling_distribution_installed(WITH_TORCH[command], f"hyperpod-kit checkpoint {command}")
    try:
        module = import_module(WITH_TORCH[command])
    except ModuleNotFoundError as err:
        if err.name is None or err.name.split(".")[0] == "hyperpod_kit":
            raise
        raise MissingExtra(
            f"hyperpod-kit checkpoint {command} needs {err.name}, which is not installed",
            hint=requirements_install_command("torch"),
        ) from None
    return int(module.main(argv[1:]))


if __name__ == "__main__":
    sys.exit(ending.run_program_ending_on_ctrl_c(lambda: ending.run(lambda: main(sys.argv[1:]))))
