"""A machine is lost with its memory, or two are: what partners hold brings the run back, or storage does, bit by bit.

Each rank is a node of its own: it has a shared memory that no other rank sees, and copies go over loopback. Saves are
for memory but for the first. A save is sealed when all ranks have it and each one's partner a copy, so the loss of one
node may cost nothing that was sealed; of two, nothing that was durable.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from typing import Any

from hyperpod_kit.checkpoint.agent_client.partner_link import RankNode
from hyperpod_kit.checkpoint.agent_client.partner_link import assign_partners as partners_of
from hyperpod_kit.checkpoint.saves.handle import SaveState
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_lab.torture import life
from hyperpod_lab.torture.ground import Ground, wait_until
from hyperpod_lab.torture.life import LifeSpec
from hyperpod_lab.torture.report import Budget, PartOutcome

WORLDS = (3, 4, 3, 8)
_SECONDS = 120.0
_NEVER = 1000
"""Saves for storage are that far apart: the first one alone."""

Events = list[dict[str, Any]]


@dataclass(frozen=True)
class Loss:
    """`nodes` are lost with their memory; `agents`: those of the others are killed too, before they notice."""

    nodes: tuple[int, ...]
    agents: bool
    saves: int

    def __str__(self) -> str:
        agents = ""
        if self.agents:
            agents = ", all agents killed"
        return f"{self.saves} saves, then nodes {list(self.nodes)} are lost{agents}"


def lose_nodes_of_runs(here: Ground, seed: int, part: PartOutcome, budget: Budget) -> None:
    """Lose machines until `part.requested` runs have lost some or the budget is over; record what was wrong."""
    begin = time.monotonic()
    dice = random.Random(f"partners/{seed}")
    while part.done < part.requested and not budget.over:
        world = WORLDS[part.done % len(WORLDS)]
        loss = Loss(tuple(dice.sample(range(world), dice.choice((1, 1, 2)))), dice.random() < 0.5, dice.randint(2, 4))
        ground = here.make_subground(str(part.done))
        nodes = [ground.make_subground(f"node-{rank}") for rank in range(world)]
        try:
            wrong = _lose_nodes_and_check(ground, nodes, seed + part.done, loss, part)
        finally:
            for node in nodes:
                node.kill_agents_and_remove()
        part.done += 1
        if wrong:
            part.record_violation(f"seed {seed}, run {part.done}, {world} nodes, {loss}: {wrong}")
    part.seconds = time.monotonic() - begin


def _lose_nodes_and_check(ground: Ground, nodes: Sequence[Ground], seed: int, loss: Loss, part: PartOutcome) -> str:
    world = len(nodes)
    first = [
        LifeSpec(
            root=ground.root,
            shm=str(node.shm),
            events=str(ground.disk / f"first-{rank}"),
            seed=seed,
            rank=rank,
            world=world,
            store=str(ground.disk / "meet-first"),
            saves=loss.saves + 1,
            memory=_NEVER,
            lingers=SaveState.SEALED,
            holds=str(ground.disk / "never"),
            revives=False,
            options=(("partners", True), ("slots", 3)),
        )
        for rank, node in enumerate(nodes)
    ]
    ranks = [life.start_life(order) for order in first]
    wait_until(lambda: _have_sealed_saves(first, loss.saves) or _have_ended(ranks), _SECONDS)
    # Agents first: those that live when trainers have died bring the newest to storage, and a lost node's do not.
    for number, node in enumerate(nodes):
        if loss.agents or number in loss.nodes:
            node.kill_agents()
    first_events = [life.read_events(order.events) for order in first]
    for rank in ranks:
        rank.kill()
        rank.join()
    if any(event["what"] in ("error", "save raised") for event in itertools.chain.from_iterable(first_events)):
        return f"it could not begin: {first_events}"
    copied = all(_has_copied_everything(node) for node in nodes)
    for number in loss.nodes:
        by_descriptor.remove_tree(nodes[number].shm)
        by_descriptor.make_directory(nodes[number].shm)
    second = [
        replace(
            order,
            events=str(ground.disk / f"second-{rank}"),
            store=str(ground.disk / "meet-second"),
            saves=1,
            holds="",
            revives=True,
        )
        for rank, order in enumerate(first)
    ]
    ranks = [life.start_life(order) for order in second]
    wait_until(lambda: _have_ended(ranks), _SECONDS)
    for rank in ranks:
        if rank.exitcode is None:
            rank.kill()
        rank.join()
    second_events = [life.read_events(order.events) for order in second]
    floor = _oldest_allowed_seq(first_events, nodes, loss, copied)
    part.counts["lost with no copy of something"] += not copied
    violation = _find_violations(second_events, floor, part)
    if violation:
        return violation
    return _await_agents_and_describe_leftovers(nodes)


def _has_copied_everything(node: Ground) -> bool:
    """Whether no log of a node tells of something that has no copy elsewhere."""
    return not any("no copy of" in path.read_text() for path in node.shm.rglob("*.log"))


def _count_sealed_saves(events: Events) -> int:
    if not _is_last_save_sealed(events):
        return 0
    return sum(event["what"] == "saving" for event in events)


def _is_last_save_sealed(events: Events) -> bool:
    """Whether what was saved last has had its time to be sealed."""
    return bool(events) and events[-1]["what"] != "saving"


def _have_sealed_saves(orders: Sequence[LifeSpec], saves: int) -> bool:
    """Whether each life has sealed so many saves."""
    return all(_count_sealed_saves(life.read_events(order.events)) >= saves for order in orders)


def _have_ended(ranks: Sequence[BaseProcess]) -> bool:
    return all(rank.exitcode is not None for rank in ranks)


def _oldest_allowed_seq(events_by_rank: Sequence[Events], nodes: Sequence[Ground], loss: Loss, copied: bool) -> int:
    """Return the oldest seq that may be restored."""
    holder = partners_of([RankNode((socket.gethostname(), str(node.shm)), "") for node in nodes])
    copies_survive = copied and all(holder[number] not in loss.nodes for number in loss.nodes)
    levels = [SaveState.DURABLE]
    if copies_survive:
        levels = [SaveState.SEALED, SaveState.DURABLE]
    events = itertools.chain.from_iterable(events_by_rank)
    return max((event["seq"] for event in events if event["what"] in levels), default=0)


def _find_violations(events_by_rank: Sequence[Events], oldest_allowed_seq: int, part: PartOutcome) -> str:
    start_events = [
        next((event for event in events if event["what"] in ("restored", "fresh")), None) for events in events_by_rank
    ]
    if None in start_events:
        return f"not every rank has restored: {[events[-1:] for events in events_by_rank]}"
    restored = [event for event in start_events if event is not None]
    part.counts["restored from " + str(restored[0].get("tier", "nothing"))] += 1
    wrong = [f"rank {rank}: {event['wrong']}" for rank, event in enumerate(restored) if event["wrong"]]
    positions = {(event.get("epoch", 0), event.get("seq", 0)) for event in restored}
    if len(positions) > 1:
        wrong.append(f"the ranks restored {sorted(positions)}")
    if min(seq for _, seq in positions) < oldest_allowed_seq:
        wrong.append(
            f"restored {sorted(positions)}, expected seq {oldest_allowed_seq} or later: {restored[0]['rejected']}"
        )
    if not all(events[-1]["what"] == "closed" and events[-1]["clean"] for events in events_by_rank):
        wrong.append(f"it did not end well: {[events[-1] for events in events_by_rank]}")
    return "; ".join(wrong)


def _await_agents_and_describe_leftovers(nodes: Sequence[Ground]) -> str:
    """Wait for the agents to end and return what is left in the nodes' memory; a run that has ended well leaves
    nothing."""
    wait_until(lambda: not any(node.find_living_agents() for node in nodes), 20.0)
    remaining_names: list[str] = []
    for node in nodes:
        for _, _, names in os.walk(node.shm):
            remaining_names += names
    if remaining_names:
        return f"left in memory: {remaining_names}"
    return ""
