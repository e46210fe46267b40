"""Two small training loops that run while a save persists."""

from __future__ import annotations

import torch
from host import now


class Loop:
    """Two small CPU training loops.

    'py': 1 intra-op thread, 20 tiny matmuls + Python bookkeeping per step (sensitive to the GIL).
    'mm': all intra-op threads, one 768x768x768 matmul per step (sensitive to CPU and memory bandwidth).
    """

    def __init__(self, threads: int):
        self.threads = threads
        g = torch.Generator().manual_seed(0)
        self.xs = torch.randn(64, 64, generator=g) * 0.1
        self.ws = torch.randn(64, 64, generator=g) * 0.1
        self.xm = torch.randn(768, 768, generator=g) * 0.03
        self.wm = torch.randn(768, 768, generator=g) * 0.03

    def _run_python_step(self):
        x = self.xs
        acc = 0
        for i in range(20):
            x = torch.relu(x @ self.ws)
            acc += i
        return x

    def _run_matmul_step(self):
        return torch.mm(self.xm, self.wm)

    def run_until(self, kind: str, done, max_s: float) -> tuple[int, float]:
        """Run steps until done() is true or max_s passed; done() is asked every ~10 ms."""
        step = self._run_matmul_step
        if kind == "py":
            step = self._run_python_step
            torch.set_num_threads(1)
        n = 0
        t0 = now()
        nxt = t0 + 0.01
        with torch.no_grad():
            while True:
                step()
                n += 1
                t = now()
                if t >= nxt:
                    if t - t0 >= max_s or done():
                        break
                    nxt = now() + 0.01
        el = now() - t0
        if kind == "py":
            torch.set_num_threads(self.threads)
        return n, el

    def measure_rate(self, kind: str, seconds: float) -> float:
        n, el = self.run_until(kind, lambda: False, seconds)
        return n / el
