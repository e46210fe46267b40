"""Lives of a run whose root or shared memory has no room: `root_errors_job.py WHAT...`; asserts in here are the test's.

Each is a process of its own, forked from one that has imported torch.

Started by test_root_errors.py with real file systems of its own: ROOT and HPK_SHM_DIR are small tmpfs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch

from hyperpod_kit.checkpoint import Manager, Restored, State
from hyperpod_kit.checkpoint.agent.shm import shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import SlotState
from hyperpod_kit.errors import CheckpointError, NotEnoughSharedMemory

ROOT, SHM = Path(os.environ["ROOT"]), Path(os.environ["HPK_SHM_DIR"])


def state() -> State:
    torch.manual_seed(0)
    return State(torch.nn.Linear(64, 64), rng=False)


def fill(folder: Path) -> None:
    """To the last byte; not to the last file."""
    with open(folder / "ballast", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def started() -> tuple[Manager, list[str]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        made = Manager(ROOT / "run")
    return made, [str(warning.message) for warning in heard if warning.category is RuntimeWarning]


def first() -> None:
    """Step 1 is durable, step 2 whole in memory; then the end, without a word."""
    manager, _ = started()
    mine = state()
    manager.restore(mine)
    assert manager.save(1, mine).wait("durable", timeout=30)
    fill(ROOT)
    handle = manager.save(2, mine, on_busy="wait")
    handle.wait("durable", timeout=30)
    # The write may fail before the seal is done; what counts is that it comes.
    end = time.monotonic() + 30
    while not any(
        page is not None and (page.step, page.state) == (2, SlotState.SEALED)
        for page in (
            slot.page
            for slot in shm_slots.attach_each_mappable(
                shm_paths.ensure_user_directory(), shm_slots.own_slot_names(shm_paths.ensure_user_directory())
            )
        )
    ):
        assert time.monotonic() < end, handle
        time.sleep(0.01)
    assert handle.state == "failed" and "cannot be written: No space left on device" in str(handle.reason), handle
    assert str(ROOT / "run") in str(handle.reason), handle
    os._exit(0)


def full() -> None:
    """On a full root: restored from memory, heard, and saved as soon as there is room."""
    manager, heard = started()
    assert any(
        "this Manager cannot save" in line
        and "No space left on device" in line
        and "bytes and" in line
        and str(ROOT / "run") in line
        for line in heard
    ), heard
    mine = state()
    got = manager.restore(mine)
    assert isinstance(got, Restored) and (got.step, got.tier) == (2, "memory"), got
    with warnings.catch_warnings(record=True):
        handle = manager.save(3, mine)
    assert handle.state == "failed" and "cannot be written: No space left on device" in str(handle.reason), handle
    os.unlink(ROOT / "ballast")
    assert manager.save(4, mine, on_busy="wait").wait("durable", timeout=30) and manager.epoch == 2
    manager.close()


def readonly() -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(ROOT)], check=True, timeout=60)
    manager, heard = started()
    assert any("cannot be written: Read-only file system" in line for line in heard), heard
    got = manager.restore(state())
    assert isinstance(got, Restored) and (got.step, got.tier) == (4, "storage"), got
    manager.close()
    for path, words in ((ROOT / "new", "Read-only file system"), (ROOT / "run" / "RUN.json", "Not a directory")):
        try:
            Manager(path)
        except CheckpointError as err:
            assert words in str(err) and str(path) in str(err) and err.hint, err
        else:
            raise AssertionError(path)


def memory() -> None:
    """Shared memory without room at the start."""
    fill(SHM)
    try:
        Manager(ROOT / "run")
    except NotEnoughSharedMemory as err:
        assert str(SHM) in str(err) and "No space left on device" in str(err) and "bytes and" in str(err), err
        assert "flush" in str(err.hint)
    else:
        raise AssertionError


def small() -> None:
    """Shared memory of 64 MB, as a container of docker's has it, and a model of 40 MB: two slots will never fit."""
    (ROOT / "run" / ".hpk").mkdir(parents=True)  # as `job run` has made it
    manager, _ = started()
    try:
        manager.restore(State(torch.nn.Linear(10_000, 1000), rng=False))
    except NotEnoughSharedMemory as err:
        assert f"{SHM} holds 67 MB, and at least 80 MB" in str(err) and "for 2 slots of 1 rank" in str(err), err
        assert "--shm-size=1g" in str(err.hint) and "--ipc=host" in str(err.hint), err.hint
        print(f"{err}\n{err.hint}")
    else:
        raise AssertionError
    # What fits is trained and saved, whatever the size.
    mine = state()
    manager.restore(mine)
    assert manager.save(1, mine).wait("durable", timeout=30)
    manager.close()
    [told] = (ROOT / "run" / ".hpk" / "verdicts" / "7.0.0").glob("restored.json")
    assert '"error": "NotEnoughSharedMemory"' in told.read_text() and "--shm-size=1g" in told.read_text()


if __name__ == "__main__":
    for what in sys.argv[1:]:
        life = os.fork()
        if life == 0:
            globals()[what]()
            sys.exit()
        code = os.waitstatus_to_exitcode(os.waitpid(life, 0)[1])
        if code:
            sys.exit(f"{what} ended with {code}")
