"""lib/__main__.py of a bundle: `python3 -I -S …/lib node|job|checkpoint ARGS`.

Standard library only, Python 3.8.
"""

import sys
from typing import List

USAGE = "usage: hyperpod-kit node|job|checkpoint …   (the other commands live on the admin's machine)"


def main() -> int:
    """Turns errors into exit codes, whatever part they are of."""
    from hyperpod_kit import ending

    part, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    return ending.run_program_ending_on_ctrl_c(lambda: ending.run(lambda: dispatch(part, rest)))


def dispatch(part: str, rest: List[str]) -> int:
    """The exit code of the part that is named."""
    if part == "node":
        from hyperpod_kit.node import cli as node_cli

        return node_cli.run(rest)
    if part == "job":
        from hyperpod_kit.job import cli as job_cli

        return job_cli.main(rest)
    if part == "checkpoint":
        from hyperpod_kit.checkpoint.commands import cli as checkpoint_cli

        return checkpoint_cli.main(rest)
    print(USAGE, file=sys.stderr)
    return 0 if part in ("-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main())
