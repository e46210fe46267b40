"""A checkpoint written as a training job writes it, for `hyperpod-kit storage bench`: a program of its own, as it needs
torch. Prints one JSON object; leaves nothing behind, also when it is stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hyperpod_kit.checkpoint.agent.shm import shm_paths
from hyperpod_kit.command_line.program import parse_command
from hyperpod_kit.command_line.specs import CommandSpec, OptionSpec
from hyperpod_kit.errors import first_line
from hyperpod_kit.storage.bench.replay import launch, rank
from hyperpod_kit.storage.bench.replay.replaying import WRITERS

_PRELOAD = ("hyperpod_kit.storage.bench.replay.replaying",)


COMMAND = CommandSpec(
    "hyperpod_kit.storage.bench.replay",
    __doc__,
    "hyperpod_kit.storage.bench.replay.__main__:main",
    examples=(),
    options=(
        OptionSpec("--dir", "An empty directory on the storage to measure.", "DIR", Path, is_required=True),
        OptionSpec("--writer", "Writer to measure.", choices=WRITERS, is_required=True),
        OptionSpec("--ranks", "Number of processes that write.", "N", int, is_required=True),
        OptionSpec("--bytes", "Approximate size of one checkpoint.", "N", int, is_required=True),
        OptionSpec("--repeat", "Saves after the first.", "N", int, default=2),
    ),
)


def main(argv: list[str]) -> int:
    """Run a replay. Exit codes: 0 measured, 1 failed: the JSON says why; 2 usage."""
    args = parse_command(COMMAND, argv, f"python -m {COMMAND.name}")
    mode = "single" if args.ranks == 1 else f"fsdp2x{args.ranks}"
    with launch.RankLauncher(args.dir, shm_paths.shared_memory_root(), _PRELOAD) as launcher:
        try:
            directory, phase = launcher.make_directory("replay"), f"replay-{args.writer}"
            result, *_ = launcher.run_ranks(
                rank.replay_and_exit, launcher.make_assignments(phase, str(args.bytes), mode, args.repeat, directory)
            )
        except launch.BenchError as err:
            print(json.dumps({"error": first_line(err)}))
            return 1
    print(json.dumps({name: result[name] for name in ("writer", "ranks", "size", "seconds", "stall")}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
