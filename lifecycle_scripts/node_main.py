"""lib/__main__.py of a bundle: `python3 -I -S …/lib node|job|checkpoint ARGS`.

Standard library only, Python 3.8.
"""

import sys


def main() -> int:
    """Dispatches to the part that is named; the only place on a node that turns errors into exit codes."""
    from hyperpod_kit.errors import HyperpodKitError

    part, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    try:
        if part == "node":
            from hyperpod_kit.node import cli as node_cli

            return node_cli.run(rest)
        if part == "job":
            from hyperpod_kit.job import cli as job_cli

            return job_cli.main(rest)
        if part == "checkpoint":
            from hyperpod_kit.checkpoint.repository import cli as checkpoint_cli

            return checkpoint_cli.main(rest)
    except HyperpodKitError as err:
        print(f"error: {err}", file=sys.stderr)
        if err.hint:
            print(f"hint: {err.hint}", file=sys.stderr)
        return err.exit_code
    except KeyboardInterrupt:
        return 130
    print(
        "usage: hyperpod-kit node|job|checkpoint …   (the other commands live on the admin's machine)", file=sys.stderr
    )
    return 0 if part in ("-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main())
