"""The n-th operation of a commit fails, for every n, every kind of failure and every storage.

What is committed is what a dead job left in shared memory (`checkpoint flush`, which seals, writes and commits as an
agent does). Then, with the storage well again: the newest valid checkpoint must be the previous or the new one, with
every byte as it was; whoever was told that it is committed, or lost its memory, must find the new one; and trying
again must commit it.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from hyperpod_kit.checkpoint.agent.flush import flush
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.saves.handle import SaveState
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_lab.torture import life
from hyperpod_lab.torture.failing import backends
from hyperpod_lab.torture.failing.faulty import KINDS, FailureKind, FaultyStore
from hyperpod_lab.torture.failing.faulty_calls import FaultyCalls
from hyperpod_lab.torture.ground import Ground
from hyperpod_lab.torture.report import Budget, PartOutcome

PREVIOUS, NEW = 1, 2
"""seq of the checkpoint that is there and of the one that is committed among failures."""

_WORLD = 2


@dataclass(frozen=True)
class Template:
    """A root with the previous checkpoint, the shared memory with the new one, and both checkpoints' right bytes."""

    root: Path
    objects: dict[str, bytes]
    memory: Path
    shards: dict[int, list[bytes]]


def sweep_faults(here: Ground, seed: int, part: PartOutcome, budget: Budget, *, every: int = 1) -> None:
    """Sweep all backends; `part.requested` is set to what was found to be there.

    `every`: each N-th operation only, and four kinds of failure drawn by lot.
    """
    begin = time.monotonic()
    dice = random.Random(f"faults/{seed}")
    template = _create_template(here, seed)
    sweeps: list[tuple[str, bool]] = [(name, False) for name in backends.NAMES]
    sweeps += [("posix", True), ("restricted", True)]
    for index, (name, calls) in enumerate(sweeps):
        reason = backends.reason_unavailable(name)
        if reason is not None:
            part.counts[f"{name} not run: {reason}"] += 1
            continue
        until = Budget(budget.remaining / (len(sweeps) - index), budget)
        with backends.open_store_factory(name, template.root) as make:
            kinds: Sequence[FailureKind] = KINDS
            if every != 1:
                kinds = dice.sample(KINDS, 4)
            title = name
            if calls:
                title = f"{name} system calls"
            for kind in kinds:
                first = dice.randrange(min(every, 10))
                _fail_each_operation_in_turn(
                    _Sweep(here, template, make, kind, calls, title, first, every), part, until
                )
    part.requested = max(part.requested, part.done)
    part.seconds = time.monotonic() - begin


@dataclass(frozen=True)
class _Sweep:
    here: Ground
    template: Template
    make: Callable[[], Store]
    kind: FailureKind
    calls: bool
    name: str
    first: int
    every: int


def _fail_each_operation_in_turn(sweep: _Sweep, part: PartOutcome, budget: Budget) -> None:
    """Let operation n = 1, 2, … of a flush fail, until nothing fails any more; record violations."""
    at = sweep.first + 1 - sweep.every
    while True:
        at += sweep.every
        if budget.over:
            part.counts["sweeps cut short"] += 1
            part.requested = part.done + 1
            return
        store = sweep.make()
        _write_objects(store, sweep.template.objects)
        memory = sweep.here.shm / "case"
        by_descriptor.remove_tree(memory, ignore_errors=True)
        by_descriptor.copy_tree(sweep.template.memory, memory)
        failed, outcome = _flush_with_fault(store, sweep, memory, at)
        what = f"{sweep.name}, {sweep.kind} at operation {at} ({', '.join(failed[:2])})"
        for wrong in _retry_and_find_violations(store, sweep.template, outcome, memory):
            part.record_violation(f"{what}: {wrong}")
        if not failed:
            return
        part.done += 1
        part.counts[sweep.name] += 1
        if outcome.attempt:
            part.counts["committed all the same"] += 1
        else:
            part.counts["not committed"] += 1


def _flush_with_fault(store: Store, sweep: _Sweep, memory: Path, at: int) -> tuple[list[str], flush.FlushOutcome]:
    """Flush with the fault and return what failed and what came of it."""
    if sweep.calls:
        with _patch_open_store_to_give(store), FaultyCalls(store.url, sweep.kind, at) as faulty:
            return faulty.failed, _flush(memory)
    broken = FaultyStore(store, sweep.kind, at)
    with _patch_open_store_to_give(broken):
        return broken.failed, _flush(memory)


def _flush(memory: Path) -> flush.FlushOutcome:
    (outcome,) = flush.flush(folder=str(memory), timeout=5.0)
    return outcome


def _retry_and_find_violations(
    store: Store, template: Template, outcome: flush.FlushOutcome, memory: Path
) -> Iterator[str]:
    newest = _newest_valid_seq_or_problem(store, template)
    if isinstance(newest, str):
        yield newest
        return
    if newest != NEW and (outcome.attempt or outcome.removed):
        yield f"{outcome}, but the newest valid checkpoint is seq {newest}"
    with _patch_open_store_to_give(store):
        if any(memory.glob("*.img")):
            again = _flush(memory)
            newest = _newest_valid_seq_or_problem(store, template)
            if newest != NEW:
                yield f"tried again: {again}, and the newest valid is {newest}"


def _newest_valid_seq_or_problem(store: Store, template: Template) -> int | str:
    """Return the seq of the newest valid checkpoint, or what is wrong with it."""
    try:
        checkpoint = selection.newest_valid(store)
    except CheckpointError as err:
        return f"nothing can be restored: {type(err).__name__}: {err.message}"
    if checkpoint.seq not in template.shards:
        return f"seq {checkpoint.seq} is restored, which nobody saved"
    body = verify.read_manifest(store, checkpoint.checkpoint_id)
    for record, right in zip(body.shards, template.shards[checkpoint.seq], strict=True):
        if _read_object(store, f"{checkpoint.checkpoint_id}/{record.file}") != right:
            return f"seq {checkpoint.seq} is restored, and its {record.file} is not what was saved"
    return checkpoint.seq


def _read_object(store: Store, name: str) -> bytes:
    reader = store.open_read(name)
    try:
        data = bytearray(reader.size)
        done = 0
        while done < len(data):
            done += reader.read_into(memoryview(data)[done:], done)
        return bytes(data)
    finally:
        reader.close()


def _write_objects(store: Store, objects: dict[str, bytes]) -> None:
    for name, data in objects.items():
        writer = store.open_write(name, len(data))
        writer.write(memoryview(data), 0)
        writer.finish()


_ENGINE = tuple(f"hyperpod_kit.checkpoint.{part}" for part in ("repository", "agent.", "commands"))


@contextlib.contextmanager
def _patch_open_store_to_give(store: object) -> Iterator[None]:
    """Make the engine get this store, whatever root it opens, until the block ends."""
    names: list[tuple[ModuleType, str]] = []
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith(_ENGINE):
            names += [(module, name) for name, attribute in list(vars(module).items()) if attribute is open_store]

    def open_given_store(_root: object) -> object:
        return store

    for module, name in names:
        setattr(module, name, open_given_store)
    try:
        yield
    finally:
        for module, name in names:
            setattr(module, name, open_store)


def _create_template(here: Ground, seed: int) -> Template:
    """Let two ranks save twice, their agents dying before the second save is on storage; return what is left."""
    made = here.make_subground("template")
    ranks = []
    for rank in range(_WORLD):
        ranks.append(
            life.start_life(
                life.LifeSpec(
                    root=made.root,
                    shm=str(made.shm),
                    events=str(made.disk / f"life.{rank}"),
                    seed=seed,
                    rank=rank,
                    world=_WORLD,
                    store=str(made.disk / "rendezvous"),
                    saves=2,
                    lingers=SaveState.DURABLE,
                    failpoint="commit.before_extra@2",
                    revives=False,
                    algorithm="blake2b",
                )
            )
        )
    for process in ranks:
        process.join(60.0)
    made.kill_agents()
    root = Path(made.root)
    previous = selection.newest_valid(made.root)
    if previous.seq != PREVIOUS or not any(made.shm.glob("*.img")):
        raise CheckpointError(
            f"the previous checkpoint is seq {previous.seq}, expected {PREVIOUS}: "
            f"{life.read_events(str(made.disk / 'life.0'))}"
        )
    objects = {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and (path.parent == root or path.parent.name == previous.checkpoint_id)
    }
    # What it looks like when nothing fails is what it must look like whatever fails.
    memory = here.shm / "reference"
    by_descriptor.copy_tree(made.shm, memory)
    _flush(memory)
    shards = {}
    for seq in (PREVIOUS, NEW):
        newest = previous.checkpoint_id
        if seq != PREVIOUS:
            newest = selection.newest_valid(made.root).checkpoint_id
        if layout.parse_checkpoint_id(newest) is None or f"seq-{seq:06d}" not in newest:
            raise CheckpointError(f"{newest} is not the checkpoint with seq {seq}")
        shards[seq] = [(root / newest / layout.shard_file(rank)).read_bytes() for rank in range(_WORLD)]
    if not set(os.listdir(made.shm)):
        raise CheckpointError("the shared memory with the new checkpoint is empty")
    return Template(root, objects, made.shm, shards)
