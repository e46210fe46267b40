"""One rank's life: restore, check what came, save a few steps, and be killed somewhere on the way.

It runs in a process forked from one that has imported torch already. What it has seen goes line by line into a file,
which outlives a SIGKILL.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

from hyperpod_kit.environment import HPK_AGENT_LINGER, HPK_FAILPOINT, HPK_FAILPOINT_TRACE, HPK_SHM_DIR
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_lab.torture.ground import wait_until

CONTEXT = multiprocessing.get_context("forkserver")
# The first optimizer of a process imports torch._dynamo, which costs more than all the rest of a life.
_PRELOAD = [
    "torch",
    "torch._dynamo",
    "torch._inductor.config",
    "torch.nn.parallel",
    "torch.distributed",
    "hyperpod_kit.checkpoint.manager",
    "hyperpod_kit.checkpoint.capture.staging",
    "hyperpod_kit.checkpoint.restore.recovered_snapshots",
    "hyperpod_lab.torture.subject",
]


@dataclass(frozen=True)
class LifeSpec:
    """What a life is to do.

    `memory`: all saves but every so many-th one are for memory (0: none is). `lingers`: after each save wait for that
    level ("" = go on at once), of one for memory until it is sealed. `holds`: before its last save it waits, within
    30 s, for this file. `pauses`: before its save of that number (from 0; as many as there are: before its end) it says
    so, and waits for that file as long. `revives`: an agent that dies is started again, as always; without, it stays
    dead.
    """

    root: str
    shm: str
    events: str
    seed: int
    rank: int = 0
    world: int = 1
    store: str = ""
    saves: int = 3
    memory: int = 0
    lingers: str = ""
    holds: str = ""
    pauses: tuple[tuple[int, str], ...] = ()
    on_busy: str = "wait"
    failpoint: str = ""
    trace: str = ""
    revives: bool = True
    algorithm: str | None = None
    width: int = 32
    options: tuple[tuple[str, Any], ...] = ()
    env: tuple[tuple[str, str], ...] = ()


def start_life(order: LifeSpec) -> BaseProcess:
    """Start a life in a new process. The caller joins it."""
    return spawn(_run_life, (order,))


def spawn(target: Callable[..., None], args: tuple[Any, ...]) -> BaseProcess:
    """Call `target` in a process that has torch already. The caller joins it."""
    CONTEXT.set_forkserver_preload(_PRELOAD)
    process = CONTEXT.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def read_events(path: str) -> list[dict[str, Any]]:
    """What a life has written so far; a line that its death cut off is not there."""
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file.read().splitlines(keepends=True) if line.endswith("\n")]
    except FileNotFoundError:
        return []


class _EventLog:
    def __init__(self, path: str) -> None:
        self._fd = by_descriptor.open_own_or_root_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, what: str, **values: Any) -> None:
        os.write(self._fd, json.dumps({"what": what, **values}).encode() + b"\n")


def _run_life(order: LifeSpec) -> None:
    out = by_descriptor.open_own_or_root_file(order.events + ".out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    faulthandler.enable()  # SIGABRT makes a life that hangs say where
    for name in [name for name in os.environ if name.startswith(("HPK_", "SLURM_"))]:
        del os.environ[name]
    os.environ.update({HPK_SHM_DIR: order.shm, HPK_AGENT_LINGER: "10", "GLOO_SOCKET_IFNAME": "lo", **dict(order.env)})
    if order.failpoint:
        os.environ.update({HPK_FAILPOINT: order.failpoint, HPK_FAILPOINT_TRACE: order.trace})
    event_log = _EventLog(order.events)
    warnings.simplefilter("ignore", RuntimeWarning)  # a skipped save is an outcome here, not news
    import torch

    torch.set_num_threads(1)
    try:
        if order.world > 1:
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{order.store}", rank=order.rank, world_size=order.world
            )
        _restore_and_save(order, event_log)
    except Exception as err:
        event_log.write("error", kind=type(err).__name__, why=str(err)[:1000])
        os._exit(3)
    sys.stdout.flush()
    # A process group of which a rank was killed must not hold up this one's end.
    os._exit(0)


def _restore_and_save(order: LifeSpec, event_log: _EventLog) -> None:
    from hyperpod_kit.checkpoint import Manager, Restored
    from hyperpod_kit.checkpoint.saves.handle import SaveState
    from hyperpod_lab.torture.subject import Subject

    subject = Subject(order.seed, order.rank, width=order.width)
    manager = Manager(order.root, algorithm=order.algorithm, **dict(order.options))
    if not order.revives:
        manager._agent.tries = 0
    event_log.write("started", epoch=manager.epoch, pid=os.getpid())
    got = manager.restore(subject.state)
    if isinstance(got, Restored):
        event_log.write(
            "restored",
            epoch=got.epoch,
            seq=got.seq,
            step=got.step,
            tier=got.tier,
            wrong=subject.find_differences(got.epoch, got.step),
            rejected=[list(pair) for pair in got.rejected],
        )
    else:
        event_log.write("fresh", wrong=[], rejected=[list(pair) for pair in got.rejected])
    handles: list[Any] = []
    written_states: dict[int, str] = {}

    def write_handle_states() -> None:
        for handle in handles:
            if written_states.get(handle.seq) != handle.state:
                written_states[handle.seq] = handle.state
                event_log.write(handle.state, epoch=manager.epoch, seq=handle.seq, step=handle.step, why=handle.reason)

    def pause(saves: int) -> None:
        for number, path in order.pauses:
            if number == saves:
                event_log.write("waiting")
                wait_until(partial(os.path.exists, path), 30.0)

    for step in range(got.next_step, got.next_step + order.saves):
        if order.holds and step == got.next_step + order.saves - 1:
            wait_until(lambda: os.path.exists(order.holds), 30.0)
        pause(step - got.next_step)
        manager.fence()  # as optimizer.step does: what changes now must not be what an overlapped save still copies
        subject.fill(manager.epoch, step)
        event_log.write("saving", epoch=manager.epoch, step=step)
        for_memory = bool(order.memory) and step % order.memory != 0
        try:
            handles.append(
                manager.save(
                    step,
                    subject.state,
                    on_busy=order.on_busy,  # type: ignore[arg-type]
                    tier="memory" if for_memory else "storage",
                )
            )
        except Exception as err:
            write_handle_states()
            event_log.write("save raised", kind=type(err).__name__, why=str(err)[:500])
            return
        if order.lingers:
            handles[-1].wait(SaveState.SEALED if for_memory else order.lingers, timeout=10.0)
        write_handle_states()
    pause(order.saves)
    event_log.write("closing")
    closed = manager.close(drain=15.0)
    write_handle_states()
    event_log.write("closed", clean=closed)


def flush_with_failpoint(shm: str, failpoint: str, trace: str) -> None:
    """Flush as the epilog does, in a process of its own that may be killed on the way."""
    _join_or_kill(spawn(_flush_and_exit, (shm, failpoint, trace)))


def prune_with_failpoint(root: str, failpoint: str, trace: str) -> None:
    """Prune to the last two, as `checkpoint prune`, in a process of its own that may be killed on the way."""
    _join_or_kill(spawn(_prune_to_two_and_exit, (root, failpoint, trace)))


def _join_or_kill(process: BaseProcess) -> None:
    process.join(30.0)
    if process.exitcode is None:
        process.kill()
        process.join()


def _flush_and_exit(shm: str, failpoint: str, trace: str) -> None:
    os.environ.update({HPK_FAILPOINT: failpoint, HPK_FAILPOINT_TRACE: trace})
    from hyperpod_kit.checkpoint.agent.flush import flush as repository_flush

    repository_flush.flush(folder=shm, timeout=5.0)
    os._exit(0)


def _prune_to_two_and_exit(root: str, failpoint: str, trace: str) -> None:
    os.environ.update({HPK_FAILPOINT: failpoint, HPK_FAILPOINT_TRACE: trace})
    from hyperpod_kit.checkpoint.repository import policy, retention
    from hyperpod_kit.checkpoint.repository.records import identity
    from hyperpod_kit.checkpoint.repository.store.open import open_store

    whose = identity.read_or_infer_identity(root)
    assert whose is not None
    retention.enforce(open_store(root), policy.Latest(2), whose)
    os._exit(0)
