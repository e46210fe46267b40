"""Healthy jobs that are silent or slow are never ended as hung; jobs that hang and print are, in time.

    python -m tests.unit.job.hang_proof --rows FILE [--healthy 200] [--hung 50] [--at-once 12] [--seed 1]

Supervisors, wrappers and lifelines, two ranks each, `--stall auto:10:5`: the floor is 5 seconds, not 300. A row for
each job is appended to FILE, and what is there is not run again. Healthy jobs have silences of at least three times
their slowest step, most of them longer than the floor: a first step that compiles, evaluations that are told and ones
that are not, saves and restores that are slow. A job that hangs prints all the while; one rank stands still and the
other waits for it. Exit code 1 when a healthy one was ended, or another not within twice its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.run.supervisor import JobSupervisor
from hyperpod_kit.job.step.hang import StallRule
from hyperpod_kit.job.step.options import RunOptions
from hyperpod_kit.job.step.scheduler import SlurmScheduler
from tests.support.runner import RecordingRunner

HERE = Path(__file__).parent
RULE = StallRule(10.0, 5.0)
TIMEOUT = 600
SILENCES = ("compile", "restore", "evaluation", "silence", "save", "close")
HANGS = ("step", "step", "step", "step", "save", "compile", "restore", "evaluation")

Row = Dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One job, made of its number alone. `plan`: see hang_trainer.py."""

    name: str
    kind: str
    plan: Dict[str, Any]


def healthy(number: int, seed: int) -> Case:
    draw = random.Random(f"healthy {seed} {number}")
    pace = draw.uniform(0.3, 0.9)
    kind = SILENCES[number % len(SILENCES)]
    steps: List[Tuple[str, float]] = [("step", draw.uniform(0.3 * pace, pace)) for _ in range(draw.randint(12, 18))]
    known = draw.uniform(max(3 * pace, 5.5), 18.0)
    place = draw.randint(5, len(steps) - 2)
    slowest = max(seconds for _, seconds in steps[:place])
    # As long as it may be without being told of.
    untold = draw.uniform(3.0 * pace, 0.9 * max(RULE.floor, RULE.factor * slowest))
    if kind == "silence":
        steps[place] = ("step", untold)
    elif kind == "compile":
        steps[0] = ("compile", known)
    elif kind == "restore":
        steps.insert(0, ("restore", known))
    elif kind == "close":
        steps.append(("close", known))
    else:
        steps.insert(place, (kind, known))
    if kind != "restore":
        steps.insert(0, ("restore", 0.1))
    plan = {"first": draw.randint(0, 5000), "steps": steps, "prints": bool(number % 2), "hang": None, "hang_at": 0}
    return Case(f"healthy-{number}", kind, plan)


def hung(number: int, seed: int) -> Case:
    draw = random.Random(f"hung {seed} {number}")
    pace = draw.uniform(0.2, 0.6)
    kind = HANGS[number % len(HANGS)]
    first = draw.randint(0, 5000)
    steps: List[Tuple[str, float]] = [("restore", 0.1)]
    place = 0 if kind in ("restore", "compile") else draw.randint(6, 15)
    steps += [("step", draw.uniform(0.3 * pace, pace)) for _ in range(place)]
    steps += [(kind, 0.1), *[("step", pace)] * 3]
    plan = {"first": first, "steps": steps, "prints": True, "hang": kind, "hang_at": first + place}
    return Case(f"hung-{number}", kind, plan)


# --- one job, in a process of its own -------------------------------------------------------------------------------


def one(folder: Path) -> int:
    """The job whose plan lies in `folder`; its events go to events.json."""
    answers = {
        "squeue job 7": "JobId=7 JobState=RUNNING NodeList=n[1-2] Comment=none",
        "scontrol -o show node": "\n".join(
            f"NodeName={name} NodeAddr=127.0.0.1 Port=1 State=ALLOCATED" for name in ("n1", "n2")
        ),
        "squeue --steps": "",
        "scancel": "",
        "srun --help": "",
    }
    env = {
        **os.environ,
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NTASKS": "2",
        "SLURMD_NODENAME": "n1",
        "XDG_STATE_HOME": str(folder / "home"),
        "FAKE_SRUN_LOG": str(folder / "srun.log"),
    }
    python = [sys.executable, "-I", "-S"]
    options = RunOptions(
        root=str(folder / "root"),
        command=(*python, str(HERE / "hang_trainer.py"), str(folder / "plan.json"), str(folder / "mark")),
        srun=str(HERE / "fake_srun.py"),
        stall=RULE,
        refused_after=1e6,
        probe_interval=60.0,
    )
    events: List[Tuple[float, str, Dict[str, Any]]] = []

    def note(event: str, fields: Any) -> None:
        events.append((time.monotonic(), event, dict(fields)))

    scheduler = SlurmScheduler(RecordingRunner(answers))
    code = JobSupervisor(options, env, scheduler=scheduler, report=JobReport(event_listener=note)).run()
    (folder / "events.json").write_text(json.dumps({"code": code, "events": events}))
    return 0


# --- all of them ----------------------------------------------------------------------------------------------------


def run(case: Case) -> Row:
    with tempfile.TemporaryDirectory(prefix="hpk-hang-") as name:
        folder = Path(name)
        (folder / "plan.json").write_text(json.dumps(case.plan))
        with open(folder / "out", "w") as out:
            done = subprocess.run(
                [sys.executable, "-m", "tests.unit.job.hang_proof", "--one", name],
                stdout=out,
                stderr=out,
                timeout=TIMEOUT,
            )
        if done.returncode:
            raise AssertionError(f"{case.name}: {(folder / 'out').read_text()[-2000:]}")
        told = json.loads((folder / "events.json").read_text())
        mark = folder / "mark"
        return row(case, told, float(mark.read_text()) if mark.exists() else None)


def row(case: Case, told: Dict[str, Any], hung_at: Optional[float]) -> Row:
    """Seconds count from when the rank stood still."""
    first: Dict[str, Tuple[float, Dict[str, Any]]] = {}
    for when, event, fields in told["events"]:
        first.setdefault(event, (when, fields))
    ended = first["ended"][1]
    found: Row = {"case": case.name, "kind": case.kind, "class": ended["class"], "reached": ended["reached"]}
    if case.plan["hang"] is None:
        last = case.plan["first"] + sum(kind in ("step", "compile") for kind, _ in case.plan["steps"]) - 1
        longest = max(seconds for _, seconds in case.plan["steps"])
        return {**found, "silence": round(longest, 1), "right": ended["class"] == "done" and ended["reached"] == last}
    if hung_at is None or "intervene" not in first:
        return {**found, "right": False}
    when, fields = first["intervene"]
    found.update(
        limit=fields.get("limit"), decided=round(when - hung_at, 1), ended=round(first["ended"][0] - hung_at, 1)
    )
    right = ended["class"] == "stall" and found["limit"] and found["ended"] <= 2 * found["limit"]
    return {**found, "right": bool(right)}


def summary(rows: List[Row]) -> str:
    lines = []
    for group in ("healthy", "hung"):
        mine = [one for one in rows if one["case"].startswith(group)]
        wrong = [one["case"] for one in mine if not one["right"]]
        lines.append(f"{group}: {len(mine)} jobs, {len(wrong)} wrong {wrong or ''}".rstrip())
        for kind in sorted({one["kind"] for one in mine}):
            of_kind = [one for one in mine if one["kind"] == kind]
            if group == "healthy":
                lines.append(f"  {kind}: {len(of_kind)}, silent for up to {max(one['silence'] for one in of_kind)} s")
                continue
            shares = [one["ended"] / one["limit"] for one in of_kind if one.get("limit")]
            most = f"ended after up to {max(shares):.2f} times the limit" if shares else "none ended"
            lines.append(f"  {kind}: {len(of_kind)}, {most}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--hung", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return one(args.one)
    if args.rows is None:
        parser.error("--rows is needed")
    cases = [healthy(number, args.seed) for number in range(args.healthy)]
    cases += [hung(number, args.seed) for number in range(args.hung)]
    rows = [json.loads(line) for line in args.rows.read_text().splitlines()] if args.rows.exists() else []
    there = {row["case"] for row in rows}
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(args.at_once) as pool, open(args.rows, "a") as file:
        for found in pool.map(run, [case for case in cases if case.name not in there]):
            rows.append(found)
            file.write(json.dumps(found) + "\n")
            file.flush()
    print(summary(rows))
    return 0 if all(one["right"] for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
