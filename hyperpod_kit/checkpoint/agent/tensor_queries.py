"""What an agent asks its trainer: in which tensor it differs from another rank. See replicas."""

from __future__ import annotations

from typing import Callable, Sequence, Set

from hyperpod_kit.checkpoint.agent.channel import Channel
from hyperpod_kit.checkpoint.agent.control_page import Key
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import RankTensors
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import TensorQuery
from hyperpod_kit.checkpoint.agent.replicas import Tensors


class TensorQueries:
    """Questions to the trainer at the other end of `trainer`; each is answered through `report` exactly once."""

    def __init__(self, rank: int, trainer: Channel, report: Callable[[RankTensors], None]) -> None:
        self._rank = rank
        self._trainer = trainer
        self._report = report
        self._pending: Set[Key] = set()

    def query_trainer(self, key: Key, holders: str, ranks: Sequence[int]) -> None:
        """Ask the trainer which tensors of that capture it holds together with these holders, if this rank is one
        of `ranks`."""
        if self._rank not in ranks:
            return
        self._pending.add(key)
        if not self._trainer.send(TensorQuery(key, holders).to_json()):
            self.report_tensors_if_pending(key, None)

    def report_tensors_if_pending(self, key: Key, tensors: Tensors) -> None:
        if key in self._pending:
            self._pending.discard(key)
            self._report(RankTensors(key, tensors))

    def report_none_for_all_pending(self) -> None:
        """Report None for all pending queries: the trainer is gone."""
        for key in sorted(self._pending):
            self.report_tensors_if_pending(key, None)
