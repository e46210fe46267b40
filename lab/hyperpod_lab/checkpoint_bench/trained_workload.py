"""The workload of the bench: its bytes are compared after a restore, and its steps are as long as they are to be."""

from __future__ import annotations

import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import torch

from hyperpod_kit.storage.bench.replay.peers import Peers
from hyperpod_kit.storage.bench.replay.workload import Workload


class TrainedWorkload(Workload):
    """Model, optimizer and batches."""

    _length = 8

    def digest(self) -> str:
        """Return a digest of all local bytes, in order: a CRC-32 of each tensor. Not the engine's own algorithm, on
        purpose."""

        def tensor_digest(tensor: torch.Tensor) -> str:
            return f"{zlib.crc32(tensor.view(-1).view(torch.uint8).numpy().data):08x}"

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return " ".join(pool.map(tensor_digest, [tensor for tensor in self.tensors if tensor.numel()]))

    def time_forward_backward(self) -> float:
        """Run one forward and backward pass and return the seconds."""
        begin = time.perf_counter()
        tokens = torch.randint(self.size.vocabulary, (1, self._length))
        self.optimizer.zero_grad(set_to_none=True)
        self.model(tokens).square().mean().backward()
        return time.perf_counter() - begin

    def lengthen_batch(self, seconds: float, peers: Peers) -> float:
        """Lengthen the batch until forward and backward last at least `seconds` when nothing else runs; return how
        long."""
        while True:
            self.time_forward_backward()
            spent = -peers.max_over_ranks(-min(self.time_forward_backward() for _ in range(2)))
            if spent >= seconds or self._length >= self.size.positions:
                return spent
            self._length = min(self.size.positions, max(self._length * 2, int(self._length * seconds / spent * 1.1)))
