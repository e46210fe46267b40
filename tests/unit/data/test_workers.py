"""Workers that die or stand still are replaced, and the trainer receives the same batches in the same order."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
from typing import Any

import pytest
import torch

from hyperpod_kit.data import ElasticLoader, IndexedDataset
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.loading.workers import (
    WorkerStart,
    _kill_workers_and_stop_iterator,
    _unregister_workers_from_sigchld,
)
from hyperpod_kit.errors import BadRecord, DataUnavailable
from tests.support.rows import full


@pytest.fixture
def data(tmp_path):
    """data(transform) -> a data set of 80 lines, "0" … "79"."""
    (tmp_path / "a.txt").write_text("".join(f"{n}\n" for n in range(80)))
    index = build_index([str(tmp_path)], str(tmp_path / "index")).index
    return lambda transform: IndexedDataset(index, transform=transform)


def batches(dataset, **options):
    return list(ElasticLoader(dataset, 4, collate_fn=list, **options))


class Once:
    """Does something to the worker that reads "40", the first time: the marker is a file."""

    def __init__(self, marker, act):
        self.marker = marker
        self.act = act

    def __call__(self, line):
        if line == "40" and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            self.act()
        return line


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def stand_still():
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("persistent", [*full(False), True])
def test_a_worker_that_is_killed(data, tmp_path, persistent):
    calm = batches(data(str))
    found = batches(data(Once(tmp_path / "marker", die)), num_workers=2, persistent_workers=persistent)
    assert found == calm and (tmp_path / "marker").exists()


def test_a_worker_that_stands_still(data, tmp_path):
    calm = batches(data(str))
    found = batches(data(Once(tmp_path / "marker", stand_still)), num_workers=2, timeout=2)
    assert found == calm and (tmp_path / "marker").exists()


def test_a_death_does_not_reach_into_the_trainers_step(data):
    """torch's own handler would raise in whatever Python does when a worker dies."""
    loader = ElasticLoader(data(str), 4, collate_fn=list, num_workers=2)
    received, calm = [], batches(data(str))
    for batch in loader:
        received.append(batch)
        if len(received) == 3:
            for worker in multiprocessing.active_children():
                worker.kill()
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                pass  # the trainer computes
    assert received == calm


def numbers_of(line):
    """A batch of these lies in memory that its worker shares."""
    return torch.full((64,), int(line))


def bytes_of(line):
    """A batch of these takes several writes to a pipe."""
    return line.encode().rjust(50_000)


def _kill_if_running(pid):
    """The loader has perhaps ended its workers before a timer that started late."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "transform, kills", [(numbers_of, 4), (bytes_of, 4), *full((numbers_of, 100), (bytes_of, 100))]
)
@pytest.mark.timeout(600)
def test_workers_that_are_killed_with_batches_on_their_way(data, transform, kills):
    """From outside, at moments drawn at random: between two batches or while one is waited for."""
    rng, killed = random.Random(kills), 0
    options: dict[str, Any] = {"num_workers": 2, "collate_fn": torch.stack if transform is numbers_of else list}
    whole = [as_numbers(batch) for batch in ElasticLoader(data(transform), 4, collate_fn=options["collate_fn"])]
    while killed < kills:
        found, timers = [], []
        for number, batch in enumerate(ElasticLoader(data(transform), 4, **options)):
            found.append(as_numbers(batch))
            if rng.random() < 0.15 and killed < kills and number < len(whole) - 1:
                killed += 1
                victim = rng.choice(multiprocessing.active_children()).pid
                timers.append(threading.Timer(rng.choice([0, 0, 0.001, 0.003]), _kill_if_running, (victim,)))
                timers[-1].start()
        for timer in timers:
            timer.join()
        assert found == whole
    assert killed == kills


def as_numbers(batch):
    return [int(one) for one in (batch[:, 0].tolist() if isinstance(batch, torch.Tensor) else batch)]


def test_an_error_of_the_data_is_not_taken_for_a_death(data):
    """Whatever it is: an OSError or an end of file too."""

    def refuse(line):
        raise EOFError("of the data")

    with pytest.raises(EOFError, match="of the data"):
        batches(data(refuse), num_workers=1)


def test_workers_that_always_die_end_with_an_error(data):
    with pytest.raises(DataUnavailable, match="failed 4 times in a row"):
        batches(data(lambda line: die() if line == "40" else line), num_workers=1)


def test_a_worker_that_was_killed_with_the_lock_of_the_event_keeps_nobody_waiting(data):
    """torch's workers look again and again whether they are asked to end, and hold a lock that all share meanwhile."""
    loader = torch.utils.data.DataLoader(data(str), num_workers=1)
    iterator: Any = iter(loader)
    next(iterator)
    _unregister_workers_from_sigchld(iterator)
    assert iterator._workers_done_event._cond.acquire(timeout=60)  # as the worker that is killed now would have it
    _kill_workers_and_stop_iterator(iterator)
    assert not any(worker.is_alive() for worker in iterator._workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_ours_is_the_same_from_a_worker(tmp_path, workers):
    (tmp_path / "a.jsonl").write_text("{}\n{\n{}\n")
    dataset = IndexedDataset(build_index([str(tmp_path)]).index)
    with pytest.raises(BadRecord) as caught:
        batches(dataset, num_workers=workers)
    assert str(caught.value).startswith(f"{tmp_path}/a.jsonl, at 3 (sample 1): JSONDecodeError")
    assert "Traceback" not in str(caught.value) and "--on-bad skip" in (caught.value.hint or "")


def test_an_error_of_the_users_is_the_users(data):
    def wrong(line):
        raise KeyError(line)

    with pytest.raises(KeyError):
        batches(data(wrong), num_workers=1)


def test_a_worker_whose_parent_was_gone_before_it_began_ends(data):
    """torch's own watch takes whoever is the parent then for the one it works for."""
    start = WorkerStart(None)
    start._parent = 1 << 30

    def work():
        start(0)
        time.sleep(600)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode == 1


def test_the_users_own_start_of_a_worker_is_called(data, tmp_path):
    batches(data(str), num_workers=2, worker_init_fn=lambda number: (tmp_path / f"started-{number}").touch())
    assert (tmp_path / "started-0").exists() and (tmp_path / "started-1").exists()
