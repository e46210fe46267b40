"""What a trainer's side tells its agent first: whose agent it is, and how this run saves."""

from __future__ import annotations

import os
from typing import Any, Dict, NamedTuple, Optional, Sequence

from hyperpod_kit.checkpoint.agent.shm import shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.wire.channel import JsonMessage
from hyperpod_kit.system.process import Process


class AgentSetup(NamedTuple):
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
    def from_json(message: JsonMessage) -> AgentSetup:
        """Raises KeyError, TypeError, CheckpointError where the user has no directory."""
        return AgentSetup(
            root=message["root"],
            run=message.get("run", ""),
            run_id=message["run_id"],
            rank=message["rank"],
            world=message["world"],
            incarnation=message["incarnation"],
            token=message["token"],
            owner=Process(*message["owner"]),
            folder=message.get("folder") or shm_paths.ensure_user_directory(),
            versions=dict(message.get("versions", {})),
            addresses=message.get("addresses", ()),
            local=message.get("local"),
            rate_limit=message.get("rate_limit"),
            keep=message.get("keep"),
            again=bool(message.get("again")),
            port=int(message.get("port", 0)),
            partners=bool(message.get("partners")),
            partner_port=int(message.get("partner_port", 0)),
        )

    @property
    def run_hash(self) -> str:
        return shm_slots.run_hash(self.run_id)

    @property
    def lock_path(self) -> str:
        return os.path.join(self.folder, shm_slots.lock_file_name(shm_paths.node_uid(), self.run_hash, self.rank))

    @property
    def log_path(self) -> str:
        """Where the trainer's side sends what the agent prints."""
        return os.path.join(self.folder, shm_slots.log_file_name(shm_paths.node_uid(), self.run_hash, self.rank))
