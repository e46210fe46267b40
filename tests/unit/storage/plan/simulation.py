"""A job that saves and fails, event by event: what the formulas of interval.py are held against."""

from __future__ import annotations

import random

from hyperpod_kit.storage.plan.interval import FailureModel


def waste(failing: FailureModel, every: float, per_storage: int = 1, *, failures: int = 60_000, seed: int = 7) -> float:
    """Share of the time that is no training that lasts, over so many failures.

    Captures are numbered; number n is at storage when n is a multiple of `per_storage`, `persist` seconds after it was
    taken. A failure that memory survives goes on from the newest capture, another from the newest at storage.
    """
    draw = random.Random(seed)
    segment = every + failing.stall
    clock, captured, durable = 0.0, 0, 0
    pending: list[tuple[float, int]] = []
    for _ in range(failures):
        begun, ran = captured, draw.expovariate(1 / failing.mtbf)
        done = int(ran // segment)
        captured = begun + done
        end = clock + ran
        # Of all captures that went to storage only those that could still be on their way matter.
        for number in range(max(begun + 1, captured - 3 * per_storage), captured + 1):
            if number % per_storage == 0:
                pending.append((clock + (number - begun) * segment + failing.persist, number))
        durable = max([durable] + [number for at, number in pending if at <= end])
        pending = [(at, number) for at, number in pending if at > end]
        clock = end
        by_memory = draw.random() < failing.memory_share
        if not by_memory:
            captured, pending = durable, []
        restart = failing.restart + (failing.load_memory if by_memory else failing.load_storage)
        while (again := draw.expovariate(1 / failing.mtbf)) < restart:
            clock += again
        clock += restart
    return 1 - captured * every / clock
