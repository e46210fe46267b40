"""completion: what a shell must know to complete words of this program."""

from __future__ import annotations

import os
from typing import Optional

import click

from hyperpod_kit.cli.terminal.output import print_unchanged_unless_terminal

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def completion(shell: Optional[str]) -> None:
    """Print the completion script for a shell. Default: the shell in $SHELL.

    zsh requires compinit to be loaded first, bash requires version 4.4 or later. Completion never calls AWS.

    \b
    Examples:
      source <(hyperpod-kit completion bash)  # add it to ~/.bashrc to keep it
      source <(hyperpod-kit completion zsh)  # in ~/.zshrc, after compinit
      hyperpod-kit completion fish > ~/.config/fish/completions/hyperpod-kit.fish
    """
    from click.shell_completion import get_completion_class

    from hyperpod_kit.cli.table import PROGRAM, cli
    from hyperpod_kit.errors import UsageError

    chosen = shell or os.path.basename(os.environ.get("SHELL", ""))
    if chosen not in SHELLS:
        raise UsageError(
            f"specify a shell: $SHELL is {chosen or 'not set'}", hint=f"hyperpod-kit completion {'|'.join(SHELLS)}"
        )
    maker = get_completion_class(chosen)
    assert maker is not None
    lines = maker(cli, {}, PROGRAM, f"_{PROGRAM.replace('-', '_')}_COMPLETE".upper()).source()
    # click's lines for fish cut a description off at its first comma.
    print_unchanged_unless_terminal(lines.replace('string split ","', 'string split --max 1 ","'))
