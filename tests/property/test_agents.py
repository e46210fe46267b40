"""Any interleaving of save, seal, persist, commit, failures, deaths and restarts: what a start restores is exactly
what was saved, at least the newest that was sealed by all, and never nothing once there was something."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Optional, Tuple

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.property.world import World
from tests.support.examples import examples

RANKS = st.integers(0, 1)


class Agents(RuleBasedStateMachine):
    """Two ranks on a node. `sealed` and `durable` are what trainers were told, as (epoch, seq)."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="hpk-property-", dir="/dev/shm"))
        self.sealed: Tuple[int, int] = (0, 0)
        self.durable: Tuple[int, int] = (0, 0)

    @initialize(world=st.sampled_from((1, 2)))
    def begin(self, world: int) -> None:
        self.world = World(self.folder, world)
        assert self.world.start() is None

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()
        shutil.rmtree(self.folder)

    # --- trainers ---------------------------------------------------------------------------------------------------

    def trains(self) -> bool:
        return self.world.trainers

    @precondition(trains)
    @rule(
        only=st.sampled_from((None, None, None, None, 0, 1)),
        halves=st.sampled_from((1, 2, 2, 2)),
        apart=st.sampled_from((False, False, True)),
    )
    def save(self, only: Optional[int], halves: int, apart: bool) -> None:
        """By all ranks or by one that is ahead; whole, or up to the middle of the copy; of ranks that differ, too."""
        for rank in range(self.world.world):
            if only is not None and rank != only % self.world.world:
                continue
            if rank not in self.world.half:
                self.world.begin_save(rank, apart)
            if rank in self.world.half and halves == 2:
                self.world.finish_save(rank)

    # --- agents -----------------------------------------------------------------------------------------------------

    def has_event(self) -> bool:
        return any(not mine.events.empty() for mine in self.world.agents.values())

    @precondition(has_event)
    @rule(dice=st.randoms(use_true_random=False), count=st.integers(1, 6))
    def agents_take_events(self, dice, count: int) -> None:
        for _ in range(count):
            ready = [rank for rank, mine in self.world.agents.items() if not mine.events.empty()]
            if ready:
                self.world.step(dice.choice(ready))

    def has_work(self) -> bool:
        return any(True for _ in self.world.workers())

    @precondition(has_work)
    @rule(dice=st.randoms(use_true_random=False), count=st.integers(1, 4))
    def agents_seal_write_and_commit(self, dice, count: int) -> None:
        for _ in range(count):
            able = [worker for _, worker in self.world.workers()]
            if able:
                dice.choice(able).work()

    @rule(dice=st.randoms(use_true_random=False), count=st.integers(5, 25))
    def a_while_passes(self, dice, count: int) -> None:
        for _ in range(count):
            ready = [rank for rank, mine in self.world.agents.items() if not mine.events.empty()]
            able = [worker for _, worker in self.world.workers()]
            if ready and (not able or dice.random() < 0.7):
                self.world.step(dice.choice(ready))
            elif able:
                dice.choice(able).work()

    @precondition(has_work)
    @rule(dice=st.randoms(use_true_random=False))
    def storage_fails(self, dice) -> None:
        able = [worker for _, worker in self.world.workers() if worker.name != "seal"]
        if able:
            dice.choice(able).work(error="No space left on device")

    @rule()
    def everything_runs_to_its_end(self) -> None:
        for _ in range(500):
            ready = [rank for rank, mine in self.world.agents.items() if not mine.events.empty()]
            if ready:
                self.world.step(ready[0])
                continue
            able = [worker for _, worker in self.world.workers()]
            if not able:
                return
            able[0].work()
        raise AssertionError("the agents do not come to rest")

    # --- deaths -----------------------------------------------------------------------------------------------------

    @rule(what=st.sampled_from(("trainers", "trainers", "rank 0's agent", "rank 1's agent", "node")))
    def somebody_dies(self, what: str) -> None:
        if what == "trainers":
            self.world.kill_trainers()
        elif what == "node":
            self.listen()
            self.world.wipe()
            self.sealed = self.durable
        elif int(what[5]) in self.world.agents:
            self.world.kill_agent(int(what[5]))

    def somebody_is_dead(self) -> bool:
        return not self.world.trainers or len(self.world.agents) < self.world.world

    @precondition(somebody_is_dead)
    @rule()
    def restart(self) -> None:
        self.listen()
        self.world.kill_trainers()
        self.world.start()

    # --- what must hold ---------------------------------------------------------------------------------------------

    def listen(self) -> None:
        for event, (epoch, seq, _) in self.world.told:
            if event in ("sealed", "local", "durable"):
                assert not self.world.apart[epoch, seq], f"{event} was said of a save whose ranks differ"
                self.sealed = max(self.sealed, (epoch, seq))
            if event == "durable":
                self.durable = max(self.durable, (epoch, seq))
        self.world.told.clear()

    @invariant()
    def the_newest_sealed_can_be_restored_at_every_instant(self) -> None:
        if not hasattr(self, "world"):
            return
        self.listen()
        found = self.world.newest()
        assert (found[:2] if found else (0, 0)) >= self.sealed, f"{found} is all there is of {self.sealed}"


Agents.TestCase.settings = examples(
    60, stateful_step_count=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TestAgents = Agents.TestCase
