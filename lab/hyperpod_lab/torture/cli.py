"""`hyperpod-kit checkpoint torture`: damage, deaths and failing disks, within a budget of time."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Callable

from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.program import parse_command
from hyperpod_kit.command_line.specs import CommandSpec, OptionSpec
from hyperpod_kit.errors import UsageError
from hyperpod_kit.untrusted import terminal
from hyperpod_lab.torture import branch, days, flips, kills, lies, memory_flips, owners, partners, reshard
from hyperpod_lab.torture.damage import damage
from hyperpod_lab.torture.failing import faults
from hyperpod_lab.torture.ground import Ground, temporary_ground
from hyperpod_lab.torture.report import Budget, PartOutcome

PARTS = ("flips", "damage", "memory", "kills", "faults", "lies", "reshard", "branch", "owners", "partners", "days")
SHARES = {
    "flips": 4.0,
    "damage": 3.0,
    "memory": 1.0,
    "kills": 12.0,
    "faults": 4.0,
    "lies": 2.0,
    "reshard": 1.0,
    "branch": 1.0,
    "owners": 1.0,
    "partners": 1.0,
    "days": 1.0,
}
"""How the budget is divided; what a part does not need goes to the ones after it."""


def _parse_parts(text: str) -> str:
    invalid = sorted(set(text.split(",")) - set(PARTS))
    if invalid:
        raise UsageError(f"--only {','.join(invalid)}: the parts are {','.join(PARTS)}")
    return text


def _parse_rank_counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(word) for word in text.split(",") if word.isdecimal() and 1 <= int(word) <= 64)
    if len(counts) != text.count(",") + 1:
        raise UsageError(f"--ranks {text!r}: expected numbers from 1 to 64, such as 1,1,2,8")
    return counts


COMMAND = CommandSpec(
    "torture",
    "Test that no restore is ever wrong, under faults.",
    "hyperpod_lab.torture.cli:main",
    description="Damage checkpoints, kill trainers and agents, make the disk fail, and compare each restore bit by "
    "bit. The exit code is 1 when a restore was wrong.",
    options=(
        OptionSpec("--budget", "Total time; default: 120.", "SECONDS", float, default=120.0),
        OptionSpec("--seed", "Seed, to repeat a run; default: the date.", "SEED", int),
        OptionSpec("--only", f"Parts to run, of {','.join(PARTS)}.", "PARTS", _parse_parts, default=",".join(PARTS)),
        OptionSpec("--flips", "Maximum number of flipped bits; default: 10,000.", "FLIPS", int, default=10_000),
        OptionSpec(
            "--damage",
            "Maximum number of kinds of damage, chosen at random; default: 10,000 (all).",
            "N",
            int,
            default=10_000,
        ),
        OptionSpec("--mounted", "Damage files below this directory (a mount), as far as it allows changes.", "DIR"),
        OptionSpec("--kills", "Maximum number of kills; default: 1,000.", "KILLS", int, default=1_000),
        OptionSpec("--lies", "Maximum number of dropped writes; default: 300.", "N", int, default=300),
        OptionSpec(
            "--ranks",
            "Numbers of ranks of the killed runs, chosen at random; default: 1,1,1,1,2.",
            "N,N",
            _parse_rank_counts,
            default=(1, 1, 1, 1, 2),
        ),
        OptionSpec(
            "--meetings",
            "Number of rollbacks, concurrent jobs, lost nodes and runs older than a day; default: 6 of each.",
            "MEETINGS",
            int,
            default=6,
        ),
        OptionSpec(
            "--every",
            "Fail only every N-th operation, in some of the ways; default: 1 (all, in every way).",
            "N",
            int,
            default=1,
        ),
        OptionSpec("--dir", "Scratch directory; default: the temporary directory.", "DIR"),
        OptionSpec("--json", "Print JSON on stdout."),
    ),
    examples=("--budget 120", "--only kills --seed 8  # one part, repeatable"),
)


def _run_part(name: str, here: Ground, args: argparse.Namespace, budget: Budget) -> PartOutcome:
    requested = {
        "flips": args.flips,
        "damage": args.damage,
        "memory": args.flips // 100,
        "kills": args.kills,
        "faults": 0,
        "lies": args.lies,
        "reshard": len(reshard.CHANGES),
        "branch": args.meetings,
        "owners": args.meetings,
        "partners": args.meetings,
        "days": args.meetings,
    }
    part = PartOutcome(name, requested[name])
    run: dict[str, Callable[[], None]] = {
        "flips": lambda: flips.flip_checkpoint_bytes(here, args.seed, part, budget),
        "damage": lambda: damage.inspect_damaged_roots(
            here, args.seed, part, budget, most=args.damage, mounted=args.mounted
        ),
        "memory": lambda: memory_flips.flip_memory_bytes(here, args.seed, part, budget),
        "kills": lambda: kills.run_kill_campaign(here, args.seed, part, budget, worlds=args.ranks),
        "faults": lambda: faults.sweep_faults(here, args.seed, part, budget, every=args.every),
        "lies": lambda: lies.save_on_lying_disk(here, args.seed, part, budget),
        "reshard": lambda: reshard.reshard_checkpoints(here, args.seed, part, budget),
        "branch": lambda: branch.roll_back_runs(here, args.seed, part, budget),
        "owners": lambda: owners.run_competing_jobs(here, args.seed, part, budget),
        "partners": lambda: partners.lose_nodes_of_runs(here, args.seed, part, budget),
        "days": lambda: days.play_day_scenes(here, args.seed, part, budget),
    }
    run[name]()
    return part


def torture(args: argparse.Namespace, budget: Budget) -> list[PartOutcome]:
    """Run the chosen parts one after the other, each with its share of the budget."""
    part_names = args.only.split(",")
    parts = []
    with temporary_ground(args.dir) as top:
        for index, name in enumerate(part_names):
            share = SHARES[name] / sum(SHARES[other] for other in part_names[index:])
            parts.append(
                _run_part(name, top.make_subground(name), args, Budget(max(budget.remaining, 0.0) * share, budget))
            )
            if not args.json:
                _print_part(parts[-1])
    return parts


def _print_part(part: PartOutcome) -> None:
    counts = ", ".join(f"{name} {number:,}" for name, number in sorted(part.counts.items()))
    short = ""
    if part.done < part.requested:
        short = " (the budget was over)"
    print(f"{part.name}: {part.done:,} of {part.requested:,}{short} in {part.seconds:.0f} s: {counts}")
    for violation in part.violations:
        print(f"  VIOLATION {violation}")


def main(argv: list[str]) -> int:
    """Exit codes: 0 nothing was ever wrong, 1 something was, 2 usage."""
    try:
        args = parse_command(COMMAND, argv, "hyperpod-kit checkpoint torture")
    except SystemExit as end:
        return int(end.code or 0)
    budget = Budget(args.budget)
    # Told to end, it still ends its agents, removes what it has made and says what it has seen.
    before = signal.signal(signal.SIGTERM, lambda *_: budget.stop())
    try:
        return _torture_and_report(args, budget)
    finally:
        signal.signal(signal.SIGTERM, before)


def _torture_and_report(args: argparse.Namespace, budget: Budget) -> int:
    if args.seed is None:
        args.seed = int(time.strftime("%Y%m%d"))
    begin = time.monotonic()
    parts = torture(args, budget)
    broken = any(part.counts["violations"] for part in parts)
    seconds = time.monotonic() - begin
    if args.json:
        terminal.print_json(
            document(
                "checkpoint torture",
                {
                    "ok": not broken,
                    "seed": args.seed,
                    "budget": args.budget,
                    "seconds": round(seconds, 1),
                    "parts": {part.name: part.to_json() for part in parts},
                },
            )
        )
    elif broken:
        print(f"SOMETHING IS WRONG; seed {args.seed}, {seconds:.0f} s")
    else:
        print(f"nothing was ever wrong; seed {args.seed}, {seconds:.0f} s")
    return int(broken)
