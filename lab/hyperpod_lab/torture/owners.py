"""Two jobs on one root: the second gets a clear error, and nothing of the first is damaged."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from hyperpod_kit.checkpoint.saves.handle import SaveState
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_lab.torture import life
from hyperpod_lab.torture.ground import Ground, wait_until
from hyperpod_lab.torture.ledger import RootHistory
from hyperpod_lab.torture.life import LifeSpec
from hyperpod_lab.torture.report import Budget, PartOutcome


def run_competing_jobs(here: Ground, seed: int, part: PartOutcome, budget: Budget) -> None:
    """Let jobs meet until `part.requested` did or the budget is over; record what was wrong."""
    begin = time.monotonic()
    meetings = (_compete_on_same_node, _compete_under_other_run_name, _compete_from_other_node)
    while part.done < part.requested and not budget.over:
        meet = meetings[part.done % len(meetings)]
        wrong = meet(here.make_subground(str(part.done)), seed)
        part.done += 1
        part.counts[meet.__name__.strip("_").replace("_", " ")] += 1
        if wrong:
            part.record_violation(f"seed {seed}, meeting {part.done} ({meet.__name__}): {wrong}")
    part.seconds = time.monotonic() - begin


def _first_job_spec(here: Ground, seed: int) -> LifeSpec:
    return LifeSpec(
        root=here.root,
        shm=str(here.shm),
        events=str(here.disk / "first"),
        seed=seed,
        saves=4,
        lingers=SaveState.DURABLE,
        holds=str(here.disk / "go-on"),
    )


def _run_together(first: LifeSpec, second: LifeSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Start the second job while the first one trains, which goes on after the second one's end; return both
    events."""
    first_process = life.start_life(first)
    wait_until(lambda: any(e["what"] == SaveState.DURABLE for e in life.read_events(first.events)), 30.0)
    second_process = life.start_life(replace(second, holds=""))
    second_process.join(60.0)
    by_descriptor.touch(first.holds)
    first_process.join(60.0)
    return life.read_events(first.events), life.read_events(second.events)


def _describe_unless_refused(events: list[dict[str, Any]]) -> str:
    error = next((event for event in events if event["what"] == "error"), None)
    if error is None or error["kind"] != "RunIsOwned":
        return f"the second job was not refused with RunIsOwned: {error or events}"
    return ""


def _check_clean_end_and_restart(
    first: LifeSpec, first_events: list[dict[str, Any]], *other_events: list[dict[str, Any]]
) -> str:
    """Return what is wrong, "" when the first job came to a good end and what is there afterwards restores."""
    if not any(event["what"] == "closed" and event["clean"] for event in first_events):
        return f"the first job did not end well: {first_events[-3:]}"
    return _restart_and_check(first, first_events, *other_events)


def _check_refused_and_restart(
    first: LifeSpec, first_events: list[dict[str, Any]], second_events: list[dict[str, Any]]
) -> str:
    violation = _describe_unless_refused(second_events)
    if violation:
        return violation
    return _check_clean_end_and_restart(first, first_events)


def _restart_and_check(first: LifeSpec, *events_of_jobs: list[dict[str, Any]]) -> str:
    """Start again and return what is wrong, "" when it finds what these jobs have saved."""
    ledger = RootHistory()
    for events in events_of_jobs:
        ledger.add_events(events)
    after = replace(first, events=first.events + ".after", saves=1, holds="")
    process = life.start_life(after)
    process.join(60.0)
    wrong = ledger.find_violations(life.read_events(after.events), was_killed=False)
    return "; ".join(wrong)


def _compete_on_same_node(here: Ground, seed: int) -> str:
    first = _first_job_spec(here, seed)
    first_events, second = _run_together(first, replace(first, events=str(here.disk / "second")))
    return _check_refused_and_restart(first, first_events, second)


def _compete_under_other_run_name(here: Ground, seed: int) -> str:
    """A job of another name; it would not even have to meet the first one."""
    first = _first_job_spec(here, seed)
    first_events, second = _run_together(
        first, replace(first, events=str(here.disk / "second"), options=(("run", "another"),))
    )
    return _check_refused_and_restart(first, first_events, second)


def _compete_from_other_node(here: Ground, seed: int) -> str:
    """Two nodes do not see each other's memory: `job run` keeps them apart by its claim.

    Started without it, the younger start has the root: the older one hears so at its next save, is told that nothing
    more is durable, and nothing is mixed or lost.
    """
    first = _first_job_spec(here, seed)
    elsewhere = here.shm / "other-node"
    by_descriptor.make_directory(elsewhere)
    second = replace(first, events=str(here.disk / "second"), shm=str(elsewhere))
    first_events, other = _run_together(first, second)
    if any(event["what"] == "closed" and event["clean"] for event in first_events):
        return f"the first job was not told that a newer start has its root: {first_events[-3:]}"
    if not any("taken by a newer start" in str(event.get("why")) for event in first_events):
        return f"the first job does not say that a newer start has its root: {first_events[-3:]}"
    return _restart_and_check(first, other, first_events)
