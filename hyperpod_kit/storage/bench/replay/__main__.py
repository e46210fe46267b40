"""A checkpoint written as a training job writes it, for `hyperpod-kit storage bench`: a program of its own, as it needs
torch. Prints one JSON object; leaves nothing behind, also when it is stopped."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hyperpod_kit.checkpoint.agent.shm import shm_paths
from hyperpod_kit.errors import first_line
from hyperpod_kit.storage.bench.replay import launch, rank
from hyperpod_kit.storage.bench.replay.replaying import WRITERS

_PRELOAD = ("hyperpod_kit.storage.bench.replay.replaying",)


def main(argv: list[str]) -> int:
    """Run a replay. Exit codes: 0 measured, 1 failed: the JSON says why; 2 usage."""
    args = build_parser().parse_args(argv)
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


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="an empty directory on the storage to measure")
    parser.add_argument("--writer", choices=WRITERS, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True, help="of one checkpoint, about")
    parser.add_argument("--repeat", type=int, default=2, help="saves after the first")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
