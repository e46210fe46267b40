"""A run that is older than a day ends: whatever happens then, one whole checkpoint is left, and a loss is told of.

Each run saves something durable, trains on for "a day", captures more and is killed, agents and all. Then storage is
away or there, another run's agent starts in the same memory, or a day passes before anybody comes for what lies there.
"""

from __future__ import annotations

import enum
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint.agent.flush import flush
from hyperpod_kit.checkpoint.agent.partner import partner_memory
from hyperpod_kit.checkpoint.agent.shm import capture_age, node_tiers, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import COMPLETE_STATES, Key, Page
from hyperpod_kit.checkpoint.repository import policy
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.checkpoint.saves.handle import SaveState
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_lab.torture import day, life
from hyperpod_lab.torture.ground import Ground, wait_until
from hyperpod_lab.torture.life import LifeSpec
from hyperpod_lab.torture.report import Budget, PartOutcome

_SECONDS = 60.0
_BEFORE, _AFTER = 2, 3
"""Saves before the run's day, of which the first is durable, and after it."""

Events = list[dict[str, Any]]


class DayEvent(enum.Enum):
    """What happens to what the run has left in memory."""

    STORAGE_AWAY = "storage is away at the flush"
    ANOTHER_RUN = "another run's agent starts"
    STORAGE_THERE = "a flush"
    DAY_PASSES = "a day passes, then a flush"
    DAY_PASSES_AWAY = "a day passes with storage away, then a flush"
    CLOCK_SET = "the captures are of another clock, then a flush with storage away"


class DayWay(enum.Enum):
    """How the run becomes older than a day."""

    TIMES = "its files are"
    CLOCK = "the flush's clock is"


@dataclass(frozen=True)
class DayScene:
    """One run. `memory`: see LifeSpec. `world`: 1, or 2 for ranks on two nodes with copies at each other."""

    event: DayEvent
    way: DayWay = DayWay.TIMES
    memory: int = 0
    world: int = 1

    def __str__(self) -> str:
        cadence = "one cadence"
        if self.memory:
            cadence = "two cadences"
        return f"{self.event.value}, {self.way.value} old, {cadence}, {self.world} nodes"


@dataclass(frozen=True)
class DayOutcome:
    """`captures`: whole ones in memory at the end that storage did not have; `copies`: those at partners; `lost`: of
    them, what no storage has afterwards; `reported`: whether a flush said that something is lost; `wrong`: "" for
    nothing.
    """

    captures: int
    copies: int
    lost: int
    reported: bool
    wrong: str


def play_day_scenes(here: Ground, seed: int, part: PartOutcome, budget: Budget) -> None:
    """Let days pass until `part.requested` runs have ended or the budget is over; record what was wrong."""
    begin = time.monotonic()
    dice = random.Random(f"days/{seed}")
    while part.done < part.requested and not budget.over:
        event = list(DayEvent)[part.done % len(DayEvent)]
        scene = DayScene(event, dice.choice(list(DayWay)), dice.choice((0, 5)), dice.choice((1, 1, 1, 2)))
        outcome = play_one_day_scene(here.make_subground(str(part.done)), seed + part.done, scene)
        part.done += 1
        part.counts[scene.event.value] += 1
        part.counts["captures"] += outcome.captures
        part.counts["copies at partners"] += outcome.copies
        part.counts["given up aloud"] += outcome.lost
        if outcome.wrong:
            part.record_violation(f"seed {seed}, run {part.done}, {scene}: {outcome.wrong}")
    part.seconds = time.monotonic() - begin


def play_one_day_scene(
    here: Ground, seed: int, scene: DayScene, pass_day: Callable[[str], None] = day.backdate_run
) -> DayOutcome:
    """Play one run from its start to what is left of it.

    `pass_day`: what a day does to a node's memory while the run goes on.
    """
    nodes = [here.make_subground(f"node-{rank}") for rank in range(scene.world)]
    try:
        return _DayRun(here, nodes, seed, scene, pass_day).play_scene_and_judge()
    finally:
        for node in nodes:
            node.kill_agents_and_remove()


class _DayRun:
    def __init__(
        self, here: Ground, nodes: list[Ground], seed: int, scene: DayScene, pass_day: Callable[[str], None]
    ) -> None:
        self._here, self._nodes, self._scene, self._pass_day = here, nodes, scene, pass_day
        self._outcomes: list[flush.FlushOutcome] = []
        self._go = here.disk / "the day has passed"
        options: dict[str, Any] = {"keep": policy.Latest(20), "slots": 4}
        if scene.world > 1:
            options["partners"] = True
        self._orders = [
            LifeSpec(
                root=here.root,
                shm=str(node.shm),
                events=str(here.disk / f"life-{rank}"),
                seed=seed,
                rank=rank,
                world=scene.world,
                store=str(here.disk / "meet"),
                saves=_BEFORE + _AFTER,
                memory=scene.memory,
                lingers=SaveState.SEALED,
                pauses=((_BEFORE, str(self._go)), (_BEFORE + _AFTER, str(here.disk / "never"))),
                revives=False,
                options=tuple(options.items()),
            )
            for rank, node in enumerate(nodes)
        ]

    def play_scene_and_judge(self) -> DayOutcome:
        events_by_rank = self._train_and_kill()
        for event in itertools.chain.from_iterable(events_by_rank):
            if event["what"] in ("error", "save raised"):
                return DayOutcome(0, 0, 0, False, f"it could not begin: {event}")
        before = self._uncommitted_captures(self._nodes)
        copies = sum(
            len(_pages_of_complete_captures(partner_memory.copies_directory(str(node.shm)))) for node in self._nodes
        )
        self._apply_event()
        lost = self._lost_captures(before)
        loss_reported = any(outcome.lost for outcome in self._outcomes)
        wrong = self._find_violations(events_by_rank, before, lost, loss_reported)
        return DayOutcome(len(before) * self._scene.world, copies, len(lost), loss_reported, wrong)

    def _train_and_kill(self) -> list[Events]:
        """Train over the day and kill all, with captures that storage has not; return the events of each rank."""
        ranks = [life.start_life(order) for order in self._orders]
        self._wait_for_saves(_BEFORE)
        wait_until(self._committed_saves, _SECONDS)
        for node in self._nodes:
            self._pass_day(str(node.shm))
        _make_storage_unavailable(self._here.root)  # what is captured from now on cannot be written
        by_descriptor.touch(self._go)
        self._wait_for_saves(_BEFORE + _AFTER)
        wait_until(self._are_all_captures_sealed, _SECONDS)  # of a capture that nobody has sealed the age is not known
        for node in self._nodes:
            node.kill_agents()
        for rank in ranks:
            rank.kill()
            rank.join()
        _make_storage_available(self._here.root)
        return [life.read_events(order.events) for order in self._orders]

    def _wait_for_saves(self, saves: int) -> None:
        """Wait until every rank has captured so many, and waits itself."""
        wait_until(lambda: all(_is_waiting(life.read_events(order.events), saves) for order in self._orders), _SECONDS)

    def _are_all_captures_sealed(self) -> bool:
        """Whether every whole capture of every node has been sealed, and so has an age."""
        now = capture_age.now()
        pages: list[Page] = []
        for node in self._nodes:
            pages += _pages_of_complete_captures(str(node.shm))
        return all(capture_age.seconds_since_sealing(page, now) is not None for page in pages)

    def _committed_saves(self) -> set[tuple[int, int]]:
        return {
            (entry.name.epoch, entry.name.seq) for entry in catalog.list_checkpoints(self._here.root) if entry.committed
        }

    def _uncommitted_captures(self, nodes: list[Ground]) -> dict[Key, Page]:
        """Return the whole captures of all ranks that storage has not, by key."""
        newest = max(self._committed_saves(), default=(0, 0))
        pages_by_node = [{page.key: page for page in _pages_of_complete_captures(str(node.shm))} for node in nodes]
        return {
            key: page
            for key, page in pages_by_node[0].items()
            if key[:2] > newest and all(key in pages for pages in pages_by_node[1:])
        }

    def _lost_captures(self, before: dict[Key, Page]) -> dict[Key, Page]:
        """Return those that storage has not now either, unless it has a newer one and they were for memory."""
        committed = self._committed_saves()
        return {
            key: page
            for key, page in before.items()
            if key[:2] not in committed and not (page.is_memory_only and any(key[:2] < other for other in committed))
        }

    # --- what happens ---------------------------------------------------------------------------------------------

    def _apply_event(self) -> None:
        event = self._scene.event
        for node in self._nodes:
            if event is DayEvent.DAY_PASSES:
                day.backdate_captures(str(node.shm))
            elif event is DayEvent.DAY_PASSES_AWAY:
                day.backdate_captures(str(node.shm), 2 * day.DAY)  # when copies are given up as well
            elif event is DayEvent.CLOCK_SET:
                _redate_captures_by_foreign_clock(str(node.shm))
        if event is DayEvent.ANOTHER_RUN:
            self._play_another_run()
        if event in (DayEvent.STORAGE_AWAY, DayEvent.DAY_PASSES_AWAY, DayEvent.CLOCK_SET):
            _make_storage_unavailable(self._here.root)
            self._flush_nodes_and_keep_outcomes()
            _make_storage_available(self._here.root)
        self._flush_nodes_and_keep_outcomes()
        # A copy on one node is of no more use once the other node's flush has committed.
        self._flush_nodes_and_keep_outcomes()

    def _play_another_run(self) -> None:
        """Run another run to its end in each node's memory; it leaves the captures that are there."""
        for number, order in enumerate(self._orders):
            other = replace(
                order,
                root=f"{self._here.root}-other",
                events=str(self._here.disk / f"other-{number}"),
                rank=0,
                world=1,
                saves=1,
                pauses=(),
                revives=True,
                options=(),
            )
            process = life.start_life(other)
            process.join(_SECONDS)

    def _flush_nodes_and_keep_outcomes(self) -> None:
        clock = capture_age.now
        if self._scene.way is DayWay.CLOCK and self._scene.event is not DayEvent.DAY_PASSES:
            clock = _moment_an_hour_before_expiry
        for node in self._nodes:
            self._outcomes += flush.flush(folder=str(node.shm), timeout=10.0, clock=clock)

    # --- what is left ---------------------------------------------------------------------------------------------

    def _find_violations(
        self, events_by_rank: list[Events], before: dict[Key, Page], lost: dict[Key, Page], loss_reported: bool
    ) -> str:
        if not before:
            return f"nothing was left in memory: {[events[-3:] for events in events_by_rank]}"
        may_lose = self._scene.event is DayEvent.DAY_PASSES_AWAY
        wrong = []
        if lost and not may_lose:
            wrong.append(f"lost {sorted(lost)}: {[outcome.note for outcome in self._outcomes]}")
        if loss_reported and not lost:
            wrong.append(f"lost {sorted(lost)}, and it was said: {self._outcomes}")
        if lost and not loss_reported:
            wrong.append(f"lost {sorted(lost)}, and it was not said: {self._outcomes}")
        remaining_slots: list[str] = []
        for node in self._nodes:
            remaining_slots += _slot_files(node.shm)
        if remaining_slots:
            wrong.append(f"left in memory: {remaining_slots}: {[outcome.note for outcome in self._outcomes]}")
        wrong += self._restart_and_check(max((key[:2] for key in before if key not in lost), default=(1, 1)))
        return "; ".join(wrong)

    def _restart_and_check(self, oldest_allowed_capture: tuple[int, int]) -> list[str]:
        """Start all ranks again and return what is wrong: each must restore that capture or a newer one, bit by bit."""
        last = [
            replace(order, events=order.events + ".last", store=order.store + ".last", saves=0, pauses=())
            for order in self._orders
        ]
        ranks = [life.start_life(order) for order in last]
        for rank in ranks:
            rank.join(_SECONDS)
        wrong = []
        for order in last:
            events = life.read_events(order.events)
            got = next((event for event in events if event["what"] == "restored"), None)
            if got is None or got["wrong"] or (got["epoch"], got["seq"]) < oldest_allowed_capture:
                wrong.append(f"rank {order.rank} restored {got or events}, expected {oldest_allowed_capture} or newer")
        return wrong


def _moment_an_hour_before_expiry() -> capture_age.BootMoment:
    """Return a time an hour before what was captured just now is too old."""
    now = capture_age.now()
    return now._replace(seconds=now.seconds + capture_age.MAX_AGE - 3600.0)


def _is_waiting(events: Events, saves: int) -> bool:
    """Whether a life has captured so many, and waits for a day to pass."""
    started_saves = sum(event["what"] == "saving" for event in events)
    return started_saves == saves and bool(events[-1]["what"] == "waiting")


def _pages_of_complete_captures(folder: str) -> list[Page]:
    pages = []
    for slot in shm_slots.attach_each_mappable(folder, partner_memory.copy_slot_names(folder)):
        page = slot.page
        slot.close()
        if page is not None and page.state in COMPLETE_STATES:
            pages.append(page)
    return pages


def _slot_files(folder: Path) -> list[str]:
    slots = [path for path in folder.rglob("hpk-*") if path.suffix in (".ctl", ".img")]
    return sorted(str(path.relative_to(folder.parent)) for path in slots)


def _redate_captures_by_foreign_clock(folder: str) -> None:
    """As if each capture had been sealed in a time to come, or by a clock that nobody here knows."""
    for directory in (tier.slots_directory(folder) for tier in node_tiers.tiers_in_shared_memory()):
        for number, slot in enumerate(
            shm_slots.attach_each_mappable(directory, partner_memory.copy_slot_names(directory))
        ):
            page, now = slot.page, capture_age.now()
            if page is not None and page.state in COMPLETE_STATES:
                other = now._replace(clock="another")
                if number % 2:
                    other = now._replace(seconds=now.seconds + 1e9)
                slot.write_page(capture_age.dated(page, other))
            slot.close()


def _make_storage_unavailable(root: str) -> None:
    by_descriptor.rename(root, f"{root}.away")
    by_descriptor.touch(root)


def _make_storage_available(root: str) -> None:
    by_descriptor.unlink(root)
    by_descriptor.rename(f"{root}.away", root)
