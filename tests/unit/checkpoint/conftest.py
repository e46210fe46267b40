"""Captures without torch: slots filled with bytes, as a trainer leaves them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from pathlib import Path
from typing import Any, Callable, Iterator, List, Tuple

import pytest

from hyperpod_kit.checkpoint.agent.flush import flush
from hyperpod_kit.checkpoint.agent.shm import control_page, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import SlotState
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec, lay_out
from hyperpod_kit.checkpoint.repository.read import rank_extra_state
from hyperpod_kit.checkpoint.repository.records import identity
from tests.unit.checkpoint.agent_run import Start

DEAD = (2**22 + 1, 1)  # above the kernel's largest pid


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of its own in place of /dev/shm. An agent that a failed test has stopped ends with it."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setenv("HPK_SHM_DIR", str(folder))
    for name in ("HPK_RESUME_FROM", "HPK_DIGEST", "HPK_FAILPOINT", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(process / "fd/1").startswith(f"{folder}/"):
                os.kill(int(process.name), signal.SIGKILL)


Capture = Callable[..., shm_slots.Slot]


@pytest.fixture
def capture(shm: Path, tmp_path: Path) -> Capture:
    """capture(rank, world, epoch, seq, step, state=..., ...) -> a slot with that capture, its trainer dead."""
    root = tmp_path / "root"
    own = identity.ensure_run_identity(str(root))

    def make(
        rank: int = 0,
        world: int = 1,
        epoch: int = 1,
        seq: int = 1,
        step: int = 10,
        *,
        slot: int = 0,
        state: SlotState = SlotState.CAPTURED,
        job: str = "7",
        owner: Tuple[int, int] = DEAD,
        algorithm: str = "blake2b",
        items: int = 3000,
        chunk: int = digest.CHUNK,
        incarnation: str = "abc123",
        elsewhere: str = "",
    ) -> shm_slots.Slot:
        mine = identity.ensure_run_identity(elsewhere) if elsewhere else own
        specs = [TensorSpec(f"w{n}.r{rank}", "F32", (items,)) for n in range(2)]
        extra = json.dumps({"extra": {"seq": seq}, "rng": rank}, separators=(",", ":")).encode()
        layout = lay_out(
            specs,
            rank=rank,
            world=world,
            run_id=mine.run_id,
            plan="blake2b:p",
            algorithm=algorithm,
            chunk=chunk,
            tree_bytes=rank_extra_state.reserved_bytes_with_growth_room(len(extra)) if rank else 0,
        )
        name = shm_slots.SlotName(os.getuid(), shm_slots.run_hash(mine.run_id), rank, slot)
        made = shm_slots.create(str(shm), name, layout.size)
        page = control_page.Page(
            origin=control_page.CaptureOrigin(
                rank=rank,
                world=world,
                incarnation=incarnation,
                run=mine.run,
                run_id=mine.run_id,
                root=elsewhere or str(root),
                job={"slurm_job_id": job},
                owner=owner,
            ),
            epoch=epoch,
            seq=seq,
            step=step,
            shard=control_page.ShardFacts(
                digest=algorithm,
                chunk=chunk,
                size=layout.size,
                layout=layout.fingerprint,
                plan="blake2b:p",
                tensors=2,
                plan_tensors=2 * world,
                extra_size=len(extra),
                extra_root=digest.small_object_digest(extra),
            ),
        )
        made.write_page(page.transition(SlotState.WRITING))
        head = layout.header(epoch, seq, step)
        made.image[: len(head)] = head
        made.image[len(head) : layout.data_end] = random.Random(seq).randbytes(layout.data_end - len(head))
        begin, end = layout.tree
        made.image[begin:end] = extra.ljust(end - begin) if rank else b""
        made.write_extra(extra)
        if state == SlotState.CAPTURED:
            made.transition(SlotState.CAPTURED)
        return made

    return make


@pytest.fixture
def committed(capture: Capture, tmp_path: Path) -> Callable[..., Tuple[str, str]]:
    """committed(seq=..., ...) -> (root, attempt) of a checkpoint that `flush` has committed."""

    def make(**which: int) -> Tuple[str, str]:
        world = which.pop("world", 1)
        for rank in range(world):
            capture(rank=rank, world=world, **which).close()
        outcomes: List[flush.FlushOutcome] = flush.flush()
        assert outcomes[0].attempt is not None, outcomes
        return str(tmp_path / "root"), outcomes[0].attempt

    return make


@pytest.fixture
def start(shm: Path, tmp_path: Path) -> Iterator[Callable[..., Start]]:
    """start(world=..., local=..., ...) -> a Start of the run on the root of `capture`; killed after the test."""
    made: List[Start] = []

    def make(**how: Any) -> Start:
        made.append(Start(str(tmp_path / "root"), shm, **how))
        return made[-1]

    yield make
    for one in made:
        one.destroy()
