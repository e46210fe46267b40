"""A disk that drops one write and says yes: the save is durable by its word, and some of its bytes are not there.

Only the agent's writes below the root are dropped, in its own process: a `sitecustomize` of ours stands in the place of
`os.write` and `os.pwrite`, and the trainer says through a shared page in which byte of which save the disk lies. What
is dropped is chance: a part of a shard, of `extra.json`, of the manifest, of a proof, of LATEST. However many saves are
bad, one after another, retention must leave one checkpoint that is whole once there was one, and a start on a new node
must find the newest of these.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import struct
import time
from dataclasses import dataclass, replace
from typing import Any

from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.saves.handle import SaveState
from hyperpod_kit.environment import HPK_AGENT_LINGER, HPK_SHM_DIR
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.system.wait import fixed_pause, poll_until
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_lab.torture import life
from hyperpod_lab.torture.ground import Ground
from hyperpod_lab.torture.report import Budget, PartOutcome

SAVES = 20
"""Of one life."""

_LIVES = 6
"""On one root."""

_KEEP = (1, 2, 3)
_SHARE = 0.8
"""Of the saves that a write is dropped of."""

_BYTES = 130_000
"""A save writes about so many below the root."""

_LIFE_SECONDS = 300.0

_SITE = '''
import mmap, os, struct, threading
page = mmap.mmap(os.open(os.environ["TORTURE_LIES"], os.O_RDWR | os.O_CLOEXEC), 4096)
root, lock = os.environ["TORTURE_LIES_ROOT"], threading.Lock()
write, pwrite = os.write, os.pwrite

def drops(fd, size):
    """Whether the disk lies about this write."""
    with lock:
        budget, hits = struct.unpack("<qq", page[:16])
        if budget <= 0 or not os.readlink("/proc/self/fd/%d" % fd).startswith(root):
            return False
        budget -= size
        page[:16] = struct.pack("<qq", budget, hits + (budget <= 0))
        return budget <= 0

def lengthen(fd, end):
    if os.fstat(fd).st_size < end:
        os.ftruncate(fd, end)

def lying_write(fd, data):
    size = memoryview(data).nbytes
    if not drops(fd, size):
        return write(fd, data)
    lengthen(fd, os.lseek(fd, size, os.SEEK_CUR))
    return size

def lying_pwrite(fd, data, offset):
    size = memoryview(data).nbytes
    if not drops(fd, size):
        return pwrite(fd, data, offset)
    lengthen(fd, offset + size)
    return size

os.write, os.pwrite = lying_write, lying_pwrite
'''


@dataclass(frozen=True)
class LyingLife:
    """One trainer. `begins_true`: its first save is written as it should be."""

    root: str
    shm: str
    events: str
    page: str
    site: str
    seed: int
    keep: int
    number: int
    saves: int
    begins_true: bool


def save_on_lying_disk(here: Ground, seed: int, part: PartOutcome, budget: Budget) -> None:
    """Save until the disk has lied `part.requested` times or the budget is over; record violations."""
    begin = time.monotonic()
    dice = random.Random(f"lies/{seed}")
    roots = 0
    while part.done < part.requested and not budget.over:
        ground = here.make_subground(f"root-{roots}")
        try:
            _play_lives_on_root(ground, seed, dice, part, budget)
        finally:
            ground.kill_agents_and_remove()
        roots += 1
    part.counts["roots"] = roots
    part.seconds = time.monotonic() - begin


def _play_lives_on_root(here: Ground, seed: int, dice: random.Random, part: PartOutcome, budget: Budget) -> None:
    site, page = here.disk / "site", here.disk / "page"
    by_descriptor.make_directory(site)
    by_descriptor.write_text(site / "sitecustomize.py", _SITE)
    by_descriptor.write_bytes(page, bytes(4096))
    first = LyingLife(
        root=here.root,
        shm=str(here.shm),
        events=str(here.disk / "life"),
        page=str(page),
        site=str(site),
        seed=seed,
        keep=dice.choice(_KEEP),
        number=0,
        saves=SAVES,
        begins_true=True,
    )
    for number in range(_LIVES):
        if part.done >= part.requested or budget.over:
            return
        played = replace(first, number=number, events=f"{first.events}-{number}", begins_true=number == 0)
        what = f"seed {seed}, keep {first.keep}, life {number}"
        expected = ""
        if number:
            expected = wait_for_newest_intact_checkpoint_id(here.root)
        events = _run_lying_life(played)
        for wrong in _find_violations(events, expected):
            part.record_violation(f"{what}: {wrong}")
        part.done += sum(event["dropped_writes"] for event in events if event["what"] == "saved")
        part.counts["saves"] += sum(event["what"] == "saved" for event in events)
        # A new node: nothing but the root is left.
        here.kill_agents()
        here.wipe_shared_memory()
        if not wait_for_newest_intact_checkpoint_id(here.root):
            part.record_violation(f"{what}: at its end no checkpoint is whole")
            return


def _run_lying_life(order: LyingLife) -> list[dict[str, Any]]:
    process = life.spawn(_train_and_exit, (order,))
    process.join(_LIFE_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
    return life.read_events(order.events)


def _find_violations(events: list[dict[str, Any]], expected_checkpoint_id: str) -> list[str]:
    wrong = [f"{event['kind']}: {event['why']}" for event in events if event["what"] == "error"]
    wrong += [f"after step {event['step']} no checkpoint was whole" for event in events if event.get("whole") == ""]
    restored = next((event for event in events if event["what"] == "restored"), None)
    if restored is None:
        return [*wrong, "nothing was restored, and nothing said"]
    if restored["wrong"]:
        wrong.append(f"{restored['attempt']} was restored with other bytes: {restored['wrong'][:3]}")
    if restored["attempt"] != expected_checkpoint_id:
        wrong.append(f"{restored['attempt'] or 'nothing'} was restored, expected {expected_checkpoint_id or 'nothing'}")
    if not any(event["what"] == "end" for event in events):
        wrong.append(f"it did not come to its end: {events[-1]}")
    return wrong


def wait_for_newest_intact_checkpoint_id(root: str) -> str:
    """Return the newest attempt of which every byte is as it was committed; "" where none is.

    While one is being deleted, the next one is there already: so it is tried again for some seconds.
    """
    return str(poll_until(lambda: _newest_intact_checkpoint_id(root), bool, fixed_pause(0.01), seconds=5.0) or "")


def _newest_intact_checkpoint_id(root: str) -> str:
    store = open_store(root)
    for entry in catalog.list_checkpoints(store):
        try:
            if entry.committed:
                verify.verify_checkpoint(store, entry.checkpoint_id)
                return entry.checkpoint_id
        except (CheckpointError, OSError):
            continue
    return ""


def _train_and_exit(order: LyingLife) -> None:
    """Restore, save while the disk lies, and check after each save, in a process of its own that ends here."""
    events = by_descriptor.open_own_or_root_file(order.events, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    out = by_descriptor.open_own_or_root_file(order.events + ".out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)

    def write_event(what: str, **values: Any) -> None:
        os.write(events, json.dumps({"what": what, **values}).encode() + b"\n")

    for name in [name for name in os.environ if name.startswith(("HPK_", "SLURM_"))]:
        del os.environ[name]
    os.environ.update(
        {
            HPK_SHM_DIR: order.shm,
            HPK_AGENT_LINGER: "10",
            "PYTHONPATH": order.site,
            "PYTHONWARNINGS": "ignore",
            "TORTURE_LIES": order.page,
            "TORTURE_LIES_ROOT": order.root,
        }
    )
    try:
        _restore_and_save(order, write_event)
    except Exception as err:
        write_event("error", kind=type(err).__name__, why=str(err)[:1000])
    os._exit(0)


def _restore_and_save(order: LyingLife, write_event: Any) -> None:
    import warnings

    import torch

    from hyperpod_kit.checkpoint import Manager, Restored
    from hyperpod_kit.checkpoint.repository.policy import Latest
    from hyperpod_lab.torture.subject import Subject

    warnings.simplefilter("ignore", RuntimeWarning)
    torch.set_num_threads(1)
    dice = random.Random(f"{order.seed}/{order.number}")
    with by_descriptor.open_stream_for_writing(order.page, "r+b") as file:
        page = mmap.mmap(file.fileno(), 4096)
    page[:16] = bytes(16)
    subject = Subject(order.seed)
    manager = Manager(order.root, keep=Latest(order.keep), max_lost=None)
    got = manager.restore(subject.state)
    if isinstance(got, Restored):
        write_event("restored", attempt=got.checkpoint_id, wrong=subject.find_differences(got.epoch, got.step))
    else:
        write_event("restored", attempt="", wrong=[])
    for step in range(got.next_step, got.next_step + order.saves):
        subject.fill(manager.epoch, step)
        is_true = (order.begins_true and step == got.next_step) or dice.random() >= _SHARE
        lie = 0
        if not is_true:
            lie = dice.randrange(1, _BYTES)
        page[:16] = struct.pack("<qq", lie, 0)
        handle = manager.save(step, subject.state, on_busy="wait")
        handle.wait(SaveState.DURABLE, 60.0)
        _, hits = struct.unpack("<qq", page[:16])
        page[:8] = bytes(8)
        write_event(
            "saved",
            step=step,
            state=handle.state,
            dropped_writes=bool(hits),
            whole=wait_for_newest_intact_checkpoint_id(order.root),
        )
    if dice.random() < 0.5:
        manager.close()
    write_event("end")
