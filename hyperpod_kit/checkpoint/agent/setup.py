"""What a trainer's side tells its agent first: whose agent it is, and how this run saves."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence

from hyperpod_kit.checkpoint.agent import places, shm_slots
from hyperpod_kit.checkpoint.agent.channel import Message
from hyperpod_kit.system.process import Process


@dataclass(frozen=True)
class AgentSetup:
    """The first line of the socket pair, see startup.start_agent. `folder`: the user's directory in shared memory.

    `again`: this agent takes the place of one that died under the same trainer. `port`: where rank 0's agent listened.
    `partners`: captures are copied into other nodes' memory; `partner_port`: where this rank's agent took such in.
    """

    root: str
    run: str
    run_id: str
    rank: int
    world: int
    incarnation: str
    token: str
    owner: Process
    folder: str
    versions: Dict[str, str]
    addresses: Sequence[str]
    local: Optional[str]
    rate_limit: Optional[float]
    keep: Any
    again: bool
    port: int
    partners: bool = False
    partner_port: int = 0

    @staticmethod
    def from_json(said: Message) -> AgentSetup:
        """Raises KeyError, TypeError, CheckpointError where the user has no directory."""
        return AgentSetup(
            root=said["root"],
            run=said.get("run", ""),
            run_id=said["run_id"],
            rank=said["rank"],
            world=said["world"],
            incarnation=said["incarnation"],
            token=said["token"],
            owner=Process(*said["owner"]),
            folder=said.get("folder") or places.mine(),
            versions=dict(said.get("versions", {})),
            addresses=said.get("addresses", ()),
            local=said.get("local"),
            rate_limit=said.get("rate_limit"),
            keep=said.get("keep"),
            again=bool(said.get("again")),
            port=int(said.get("port", 0)),
            partners=bool(said.get("partners")),
            partner_port=int(said.get("partner_port", 0)),
        )

    @property
    def run_hash(self) -> str:
        return shm_slots.run_hash(self.run_id)

    @property
    def lock_path(self) -> str:
        return os.path.join(self.folder, shm_slots.lock_file(places.node_uid(), self.run_hash, self.rank))

    @property
    def log_path(self) -> str:
        """Where the trainer's side sends what the agent prints."""
        return os.path.join(self.folder, shm_slots.log_file(places.node_uid(), self.run_hash, self.rank))
