"""Who in this process hears what its agent says."""

from __future__ import annotations

from typing import NamedTuple

from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import AgentEvent, SaveFailed, TensorDigests
from hyperpod_kit.checkpoint.comparing import Comparing
from hyperpod_kit.checkpoint.own_policy import OwnPolicy
from hyperpod_kit.checkpoint.saves import Saves
from hyperpod_kit.slurm.progress import ProgressWriter


class Hearing(NamedTuple):
    """`incarnation`: of this start, as the agent's events name it."""

    incarnation: str
    saves: Saves
    comparing: Comparing
    progress: ProgressWriter
    own_policy: OwnPolicy

    def hear(self, event: AgentEvent) -> TensorDigests | None:
        """In a thread of its own. What is to be answered, if anything."""
        if isinstance(event, SaveFailed):
            self.progress.failed()
        answer = self.comparing.hear(event)
        if answer is None:
            self.saves.hear(event, self.incarnation)
            self.own_policy.hear(event)
        return answer
