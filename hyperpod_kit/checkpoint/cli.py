"""`hyperpod-kit checkpoint`: what needs torch is sent to its own module, the rest to the torch-free program."""

from __future__ import annotations

import sys
from importlib import import_module

from hyperpod_kit import ending
from hyperpod_kit.extras import install_command
from hyperpod_kit.untrusted import terminal

WITH_TORCH = {
    "bench": "hyperpod_kit.checkpoint.bench.cli",
    "export": "hyperpod_kit.checkpoint.exporting.command",
    "import": "hyperpod_kit.checkpoint.importing.command",
    "torture": "hyperpod_kit.checkpoint.torture.cli",
}
"""Command -> the module whose `main(argv) -> int` serves it. None of them ships to a node."""

_USAGE_EXIT = 2


def main(argv: list[str]) -> int:
    """Exit codes: 0 ok, 1 found something wrong, 2 usage (verify: nothing valid), 3 could not check. Raises
    HyperpodKitError: `hyperpod-kit` says it, with the stack trace where that is asked for."""
    command = argv[0] if argv else ""
    if command not in WITH_TORCH:
        from hyperpod_kit.checkpoint.commands import cli

        return cli.perform(argv, also=sorted(WITH_TORCH))
    try:
        module = import_module(WITH_TORCH[command])
    except ModuleNotFoundError as err:
        if err.name is None or err.name.split(".")[0] == "hyperpod_kit":
            raise
        terminal.error(f"hyperpod-kit checkpoint {command} needs {err.name}", install_command("torch"))
        return _USAGE_EXIT
    return int(module.main(argv[1:]))


if __name__ == "__main__":
    sys.exit(ending.program(lambda: ending.run(lambda: main(sys.argv[1:]))))
