"""A run that was set back by hand goes on from its new branch, not from the abandoned higher step."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

from hyperpod_kit.checkpoint.repository import policy
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.checkpoint.saves.handle import SaveState
from hyperpod_kit.environment import HPK_RESUME_FROM, HPK_RESUME_MEMORY
from hyperpod_lab.torture import life
from hyperpod_lab.torture.ground import Ground
from hyperpod_lab.torture.life import LifeSpec
from hyperpod_lab.torture.report import Budget, PartOutcome


def roll_back_runs(here: Ground, seed: int, part: PartOutcome, budget: Budget) -> None:
    """Roll runs back until `part.requested` are done or the budget is over; record what was wrong."""
    begin = time.monotonic()
    dice = random.Random(f"branch/{seed}")
    while part.done < part.requested and not budget.over:
        wrong = _roll_back_and_check(here.make_subground(str(part.done)), seed, dice, part)
        part.done += 1
        if wrong:
            part.record_violation(f"seed {seed}, run {part.done}: {wrong}")
    part.seconds = time.monotonic() - begin


def _roll_back_and_check(here: Ground, seed: int, dice: random.Random, part: PartOutcome) -> str:
    """Save steps 0…long, go back to `to`, save one or more steps there, then start as usual; return what was
    wrong, or ""."""
    long, to = dice.randrange(4, 7), dice.randrange(0, 3)
    new = dice.randrange(1, 3)
    order = LifeSpec(
        root=here.root,
        shm=str(here.shm),
        events=str(here.disk / "abandoned"),
        seed=seed,
        lingers=SaveState.DURABLE,
        options=(("keep", policy.Latest(20)),),
    )
    _run_life(replace(order, saves=long))
    target = next(entry for entry in catalog.list_checkpoints(here.root) if entry.name.step == to)
    branch_events = _run_life(
        replace(
            order,
            saves=new,
            events=str(here.disk / "branch"),
            env=((HPK_RESUME_FROM, target.checkpoint_id), (HPK_RESUME_MEMORY, "0")),
        )
    )
    back = _restored_event_or_wrong(branch_events)
    if (back.get("epoch"), back.get("step")) != (1, to) or back["wrong"]:
        return f"told to go back to step {to} of epoch 1, it restored {back}"
    killed = dice.random() < 0.5
    if killed:
        # From memory as well as from storage: the third start finds what a killed second one has left.
        _run_life(
            replace(
                order,
                saves=2,
                events=str(here.disk / "killed"),
                lingers=SaveState.SEALED,
                failpoint="capture.tensor@20",
            )
        )
        here.kill_agents()
    got = _restored_event_or_wrong(_run_life(replace(order, saves=0, events=str(here.disk / "after"))))
    if killed:
        part.counts["killed on the new branch"] += 1
    else:
        part.counts["ended on the new branch"] += 1
    if got.get("epoch", 0) < 2 or got["wrong"] or got["step"] < to + new:
        return f"after {long} steps, back to {to} and {new} new ones, it restored {got}"
    if got["step"] != to + new and not killed:  # its epoch says that it is the new branch's
        return f"after {long} steps, back to {to} and {new} new ones, it restored another step: {got}"
    return ""


def _run_life(order: LifeSpec) -> list[dict[str, Any]]:
    process = life.start_life(order)
    process.join(60.0)
    return life.read_events(order.events)


def _restored_event_or_wrong(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a life has restored; {} with the reason when it has not."""
    return next((event for event in events if event["what"] == "restored"), {"wrong": events})
