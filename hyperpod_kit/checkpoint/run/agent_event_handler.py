"""Who in this process hears what its agent says."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import AgentEvent, SaveFailed, TensorDigests
from hyperpod_kit.checkpoint.capture.replica_check import ReplicaCheck
from hyperpod_kit.checkpoint.saves.saves import Saves
from hyperpod_kit.slurm.progress import ProgressWriter

if TYPE_CHECKING:
    from hyperpod_kit.checkpoint.run.user_policy import UserPolicy


class AgentEventHandler(NamedTuple):
    """`incarnation`: of this start, as the agent's events name it."""

    incarnation: str
    saves: Saves
    replica_check: ReplicaCheck
    progress: ProgressWriter
    user_policy: UserPolicy | None

    def handle_event(self, event: AgentEvent) -> TensorDigests | None:
        """Pass an agent's event to the progress writer, the replica check, the saves and the user policy,
        in the thread that receives it. Return the reply for the agent, or None."""
        if isinstance(event, SaveFailed):
            self.progress.report_failed_save()
        reply = self.replica_check.handle_event(event)
        if reply is None:
            self.saves.handle_event(event, self.incarnation)
            if self.user_policy is not None:
                self.user_policy.handle_event(event)
        return reply
