"""This rank's sealed captures, copied to the agent of its partner before anybody is told that they are sealed."""

from __future__ import annotations

import sys
import time
from typing import Callable, Optional, Sequence

from hyperpod_kit.checkpoint.agent.partner import partner_memory
from hyperpod_kit.checkpoint.agent.partner.partner_wire import CopyHolder, PartnerServer, RemotePartner
from hyperpod_kit.checkpoint.agent.persist.persist import Pace
from hyperpod_kit.checkpoint.agent.persist.seal import SlotShard
from hyperpod_kit.checkpoint.agent.protocol.setup import AgentSetup
from hyperpod_kit.checkpoint.agent.shm.control_page import Key, Page
from hyperpod_kit.checkpoint.agent.wire.wire import Address
from hyperpod_kit.errors import CheckpointError

PAUSE = 60.0
"""Seconds in which a partner that did not take a copy is not asked again: a save must not wait for it each time."""


class PartnerCopies:
    """What this agent holds for others (`port`: where they find it, 0 where the run has no partners), and has others
    hold for it."""

    def __init__(self, setup: AgentSetup) -> None:
        """Raises OSError."""
        self._setup = setup
        self._pace = Pace(setup.rate_limit)
        self._partner: Optional[CopyHolder] = None
        self._not_before = 0.0
        self.port = 0
        if setup.partners:
            self.port = PartnerServer(
                setup.folder,
                setup.run_hash,
                setup.run_id,
                setup.token,
                setup.world,
                setup.addresses,
                setup.partner_port,
            ).port

    def set_partner(self, addresses: Sequence[Address]) -> None:
        """Set the addresses of the partner's agent, to which captures are copied from now on."""
        self._partner = RemotePartner(addresses, self._setup.token, self._setup.rank, self._pace)

    def seal_and_copy_job(self, shard: SlotShard) -> Callable[[], Page]:
        """Return a job that seals a capture and copies it to the partner: it counts as sealed when its copy is
        made, or no partner takes one."""

        def job() -> Page:
            page = shard.seal()
            self._try_copy_to_partner(shard, page)
            return page

        return job

    def _try_copy_to_partner(self, shard: SlotShard, page: Page) -> None:
        partner = self._partner
        if partner is None or time.monotonic() < self._not_before:
            return
        try:
            partner.send_sealed_copy(shard.slot, page)
        except (CheckpointError, OSError) as err:
            self._not_before = time.monotonic() + PAUSE
            print(f"no copy of {page.key} in a partner's memory: {err}", file=sys.stderr, flush=True)

    def stop_copying(self) -> None:
        """Make no more copies, and let a running one go on without a rate limit: nobody trains here any more."""
        self._partner = None
        self._pace.lift()

    def free_earlier_starts(self, keep: Optional[Key]) -> None:
        """See snapshot_registry.HeldSnapshots."""
        incarnation = self._setup.incarnation
        partner_memory.remove_copies(
            self._setup.folder,
            self._setup.run_hash,
            keep=lambda page: page.key == keep or page.origin.incarnation == incarnation,
        )

    def remove_all(self) -> None:
        """See snapshot_registry.HeldSnapshots."""
        partner_memory.remove_copies(self._setup.folder, self._setup.run_hash)
