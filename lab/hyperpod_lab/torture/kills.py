"""A run that is killed over and over: SIGKILL at each named place of trainer and agent, then a new start.

Each life checks bit by bit what it restored, saves a few steps and is killed. What it may come back to is in the
ledger: at least the newest capture that a life has seen sealed (after a lost node: durable), never anything that
nobody saved, never step 0 once there was something, never a byte of another step.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint.repository import policy
from hyperpod_kit.checkpoint.saves.handle import SaveState
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_lab.torture import failpoint_names, life
from hyperpod_lab.torture.ground import Ground, wait_until
from hyperpod_lab.torture.ledger import RootHistory
from hyperpod_lab.torture.life import LifeSpec
from hyperpod_lab.torture.report import Budget, PartOutcome

LIVES_PER_RUN = 25
_LIFE_SECONDS = 180.0
_KEEP = (1, 2)
_TRIES = 6
_OFTEN = ("tensor", "slice", "chunk", "leaf", "part")
AFTERWARDS = ("at once", "agent too", "agent finishes", "node lost", "epilog", "pruned")
"""What happens between a death and the next start."""


@dataclass(frozen=True)
class Scene:
    """How one life is to end."""

    number: int
    failpoint: str
    nth: int
    world: int
    width: int
    afterwards: str
    lingers: str
    memory: int
    algorithm: str | None

    def __str__(self) -> str:
        return (
            f"life {self.number}: {self.failpoint}@{self.nth}, world {self.world}, width {self.width}, "
            f"memory {self.memory}, then {self.afterwards}"
        )


class Campaign:
    """One root after the other; `run` until enough were killed or the budget is over."""

    def __init__(self, ground: Ground, seed: int, part: PartOutcome, *, worlds: tuple[int, ...]) -> None:
        """`worlds`: how many ranks a run has is drawn from these."""
        self._top = ground
        self._seed = seed
        self._part = part
        self._worlds = worlds
        self._dice = random.Random(f"kills/{seed}")
        self._failpoints = sorted(failpoint_names.find_failpoints())
        self._tries: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        self._number = 0
        self._options: tuple[tuple[str, Any], ...] = ()

    def run(self, budget: Budget) -> None:
        begin = time.monotonic()
        runs = 0
        while self._part.done < self._part.requested and not budget.over:
            here = self._top.make_subground(f"run-{runs}")
            try:
                self._play_run_of_killed_lives(here, budget)
            finally:
                here.kill_agents_and_remove()
            runs += 1
        self._part.counts["runs"] = runs
        for failpoint in self._failpoints:
            if self._tries[failpoint] > _TRIES and not self._hits[failpoint]:
                self._part.counts[f"never reached: {failpoint}"] = self._tries[failpoint]
        self._part.seconds = time.monotonic() - begin

    def _draw_manager_options(self, disk: Path) -> tuple[tuple[str, Any], ...]:
        """Arguments for a Manager: little retention, sometimes overlapped copies, sometimes a local tier on `disk`."""
        options: dict[str, Any] = {
            "keep": policy.Latest(self._dice.choice(_KEEP)),
            "overlap": self._dice.random() < 0.4,
        }
        if self._dice.random() < 0.3:
            options["local"] = str(disk)
        return tuple(options.items())

    def _play_run_of_killed_lives(self, here: Ground, budget: Budget) -> None:
        ledger = RootHistory()
        world = self._dice.choice(self._worlds)
        self._part.counts[f"runs of {world} ranks"] += 1
        width = 32
        if self._dice.random() < 0.05:
            width = 800
        self._options = self._draw_manager_options(here.disk / "node-local")
        last: Scene | None = None
        for lives in range(LIVES_PER_RUN + 1):
            # The last life is not killed: it shows that the run still comes to a good end.
            final = lives == LIVES_PER_RUN or self._part.done >= self._part.requested or budget.over
            scene = self._draw_scene(world, width, final)
            events_by_rank, deaths = self._play_life_of_all_ranks(here, scene)
            for wrong in ledger.find_violations(events_by_rank[0], was_killed=bool(deaths)):
                self._part.record_violation(f"seed {self._seed}, {scene}, after {last}: {wrong}")
            positions = _restored_epochs_and_seqs(events_by_rank)
            if len(positions) > 1:
                self._part.record_violation(f"seed {self._seed}, {scene}: the ranks restored {sorted(positions)}")
            self._count_life(events_by_rank, deaths)
            for events in events_by_rank:
                ledger.add_events(events)
            if final:
                if not any(e["what"] == "closed" and e["clean"] for e in events_by_rank[0]):
                    self._part.record_violation(
                        f"seed {self._seed}, {scene}: an undisturbed life did not end well: "
                        f"{[e for e in events_by_rank[0] if e['what'] in ('error', 'save raised', 'closed')]}"
                    )
                return
            self._apply_event_after_death(here, scene, ledger)
            last = scene

    def _draw_scene(self, world: int, width: int, final: bool) -> Scene:
        self._number += 1
        dice = self._dice
        failpoint = ""
        if not final:
            failpoint = self._choose_and_count_next_failpoint()
        if failpoint.endswith(_OFTEN) and dice.random() < 0.5:
            nth = dice.randrange(1, 60)
        else:
            nth = dice.choice((1, 1, 1, 2, 3))
        return Scene(
            self._number,
            failpoint,
            nth,
            world,
            width,
            dice.choice(AFTERWARDS),
            dice.choice(("", SaveState.SEALED, SaveState.DURABLE)),
            dice.choice((0, 0, 2, 5)),
            dice.choice((None, "blake2b")),
        )

    def _failpoint_sort_key(self, failpoint: str) -> tuple[bool, int]:
        is_never_reached = self._tries[failpoint] > _TRIES and not self._hits[failpoint]
        return is_never_reached, self._tries[failpoint]

    def _choose_and_count_next_failpoint(self) -> str:
        """Return the failpoint tried least; one tried often and never reached (a tier that nobody uses here) is left
        out."""
        failpoint = min(self._failpoints, key=self._failpoint_sort_key)
        self._tries[failpoint] += 1
        return failpoint

    # --- one life ---------------------------------------------------------------------------------------------------

    def _play_life_of_all_ranks(self, here: Ground, scene: Scene) -> tuple[list[list[dict[str, Any]]], list[str]]:
        """Play one life of all ranks; return the events by rank and the place of each death."""
        victim = self._dice.randrange(scene.world)
        trace = here.disk / f"trace-{scene.number}"
        common = LifeSpec(
            root=here.root,
            shm=str(here.shm),
            events="",
            seed=self._seed,
            world=scene.world,
            store=str(here.disk / f"rendezvous-{scene.number}"),
            lingers=scene.lingers,
            memory=scene.memory,
            trace=str(trace),
            algorithm=scene.algorithm,
            width=scene.width,
            options=self._options,
        )
        paths = [str(here.disk / f"life-{scene.number}.{rank}") for rank in range(scene.world)]
        orders = [replace(common, rank=rank, events=path) for rank, path in enumerate(paths)]
        if scene.failpoint:
            orders[victim] = replace(orders[victim], failpoint=f"{scene.failpoint}@{scene.nth}")
        ranks = [life.start_life(order) for order in orders]
        if not wait_until(lambda: any(rank.exitcode is not None for rank in ranks), _LIFE_SECONDS):
            where = "\n".join(_abort_and_describe(rank, path) for rank, path in zip(ranks, paths, strict=True))
            self._part.record_violation(f"seed {self._seed}, {scene}: still running after {_LIFE_SECONDS:g} s: {where}")
        self._wait_or_kill_ranks(ranks)
        return [life.read_events(path) for path in paths], _read_failpoints_of_deaths(trace)

    @staticmethod
    def _wait_or_kill_ranks(ranks: list[BaseProcess]) -> None:
        """Wait for the ranks to end, and kill those left; when one was killed the others are killed at once, as a
        launcher does."""
        if not any(rank.exitcode == -signal.SIGKILL for rank in ranks):
            for rank in ranks:
                rank.join(20.0)
        for rank in ranks:
            if rank.exitcode is None:
                rank.kill()
                rank.join(10.0)

    def _apply_event_after_death(self, here: Ground, scene: Scene, ledger: RootHistory) -> None:
        if scene.afterwards in ("agent too", "node lost"):
            self._part.counts["agents killed besides"] += here.kill_agents()
        if scene.afterwards == "node lost":
            here.wipe_shared_memory()
            by_descriptor.remove_tree(here.disk / "node-local", ignore_errors=True)
            ledger.forget_captures_not_durable()
        if scene.afterwards in ("agent finishes", "epilog"):
            # An agent that waits for the agent of a dead rank is no error, so the wait is short and its end not asked.
            wait_until(lambda: not here.find_living_agents(), 3.0)
        if scene.afterwards == "epilog":
            trace = here.disk / f"trace-{scene.number}-epilog"
            life.flush_with_failpoint(str(here.shm), f"{self._dice.choice(self._failpoints)}@1", str(trace))
            self._count_deaths([f"{failpoint} of a flush" for failpoint in _read_failpoints_of_deaths(trace)])
        if scene.afterwards == "pruned":
            trace = here.disk / f"trace-{scene.number}-prune"
            prefixes = ("retention.", "store.file_deleted")
            failpoint = self._dice.choice(
                [failpoint for failpoint in self._failpoints if failpoint.startswith(prefixes)]
            )
            life.prune_with_failpoint(here.root, f"{failpoint}@{self._dice.choice((1, 1, 2, 4))}", str(trace))
            self._count_deaths(_read_failpoints_of_deaths(trace))

    def _count_deaths(self, deaths: list[str]) -> None:
        self._part.done += len(deaths)
        for failpoint in deaths:
            self._hits[failpoint] += 1
            self._part.counts[f"killed at {failpoint}"] += 1

    def _count_life(self, events_by_rank: list[list[dict[str, Any]]], deaths: list[str]) -> None:
        self._part.counts["lives"] += 1
        self._count_deaths(deaths)
        for event in events_by_rank[0]:
            if event["what"] == "restored":
                self._part.counts[f"restored from {event['tier']}"] += 1
            elif event["what"] == "fresh":
                self._part.counts["nothing was there yet"] += 1


def _abort_and_describe(rank: BaseProcess, path: str) -> str:
    """Abort a life that hangs and return its last events and the stacks of its threads."""
    if rank.pid is not None and rank.exitcode is None:
        os.kill(rank.pid, signal.SIGABRT)
        rank.join(10.0)
    stacks = Path(path + ".out").read_text(encoding="utf-8", errors="replace")
    return f"{life.read_events(path)[-6:]}\n{stacks[-6000:]}"


def _restored_epochs_and_seqs(events_by_rank: list[list[dict[str, Any]]]) -> set[tuple[int, int]]:
    """Return (epoch, seq) of each restore that a rank reports."""
    events = itertools.chain.from_iterable(events_by_rank)
    return {(event["epoch"], event["seq"]) for event in events if event["what"] == "restored"}


def _read_failpoints_of_deaths(trace: Path) -> list[str]:
    """The places of which processes have died, as they left them in the trace."""
    if not trace.exists():
        return []
    return [line.split()[0] for line in trace.read_text().splitlines()]


def run_kill_campaign(
    here: Ground, seed: int, part: PartOutcome, budget: Budget, *, worlds: tuple[int, ...] = (1, 1, 1, 1, 2)
) -> None:
    """Kill until `part.requested` processes have died at named places or the budget is over; record violations."""
    Campaign(here, seed, part, worlds=worlds).run(budget)
