"""What users of other loaders report, tried on this one: resumes of resumes, over the end of an epoch, on ranks that
divide nothing, at once after a crash."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter

import pytest

from hyperpod_kit.data import ElasticLoader
from hyperpod_kit.data.loading.sample_log_check import check_sample_log
from tests.support.rows import full
from tests.unit.data.killed_ranks import corpus


@pytest.mark.parametrize("workers", [*full(0), 2])
def test_many_resumes_over_the_ends_of_epochs(tmp_path, workers):
    """Twelve starts of five steps each: three epochs of 80 samples."""
    data, state, seen = corpus(tmp_path / "corpus", 80), None, []
    for _ in range(12):
        loader = ElasticLoader(data, 4, num_workers=workers, collate_fn=list)
        if state is not None:
            loader.load_state_dict(state)
        for epoch in range(loader.epoch, 3):
            loader.set_epoch(epoch)
            for _, batch in zip(range(5), loader, strict=False):
                seen += batch
                state = loader.state_dict()
            break
    whole = ElasticLoader(data, 4, collate_fn=list)
    assert seen == [n for _ in range(3) for batch in whole for n in batch]
    assert state is not None and state["position"] == 240


@pytest.mark.parametrize("last", ["pad", "drop", "repeat"])
@pytest.mark.parametrize("ranks", [3, 7, 11])
def test_ranks_that_divide_neither_files_nor_samples(tmp_path, ranks, last):
    """Five files of unlike sizes: all ranks have as many batches, and each as many samples."""
    data = corpus(tmp_path / "corpus", 331)
    loaders = [ElasticLoader(data, 4, rank=n, ranks=ranks, last=last, collate_fn=list) for n in range(ranks)]
    for _ in range(2):
        expected = {len(loader) for loader in loaders}
        batches = [list(loader) for loader in loaders]
        assert {len(of_rank) for of_rank in batches} == expected and len(expected) == 1
        assert {len(batch) for of_rank in batches for batch in of_rank} == {4}
        assert len({loader.position for loader in loaders}) == 1


PROGRAM = """
import sys
from hyperpod_kit.data import ElasticLoader, IndexedDataset, SampleIndex
data = IndexedDataset(SampleIndex.open(sys.argv[1]))
loader = ElasticLoader(data, 4, num_workers=2, collate_fn=list, ledger=sys.argv[2], launch=sys.argv[3])
for batch in loader:
    print("batch", flush=True)
    if sys.argv[4] == "wait":
        sys.stdin.read()
"""


@pytest.mark.full
def test_a_start_beside_the_workers_of_the_one_that_was_killed(tmp_path):
    """As it is restarted at once: the old workers have not seen yet that they are alone."""
    data = corpus(tmp_path / "corpus", 40)

    def start(launch, how):
        words = ["-W", "ignore", "-c", PROGRAM, data.index.folder, str(tmp_path / "ledger"), launch, how]
        return subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    first = start("first", "wait")
    assert first.stdout is not None and first.stdout.readline() == b"batch\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    last = start("last", "go")
    said, _ = last.communicate(timeout=120)
    assert last.returncode == 0 and Counter(said.split()) == {b"batch": 10}
    found = check_sample_log(tmp_path / "ledger")
    assert found.is_exactly_once and found.launches == 2 and found.epochs[0].once == 40
