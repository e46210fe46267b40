"""Memory of a loader is the same after ten epochs as after two, and batches use that of those before them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hyperpod_kit.data.index.build import build_index
from tests.unit.data.killed_ranks import corpus, documents

SAMPLES = """
import gc, re, sys
from hyperpod_kit.data import ElasticLoader, IndexedDataset, SampleIndex
data = IndexedDataset(SampleIndex.open(sys.argv[1]))
loader = ElasticLoader(data, 32, collate_fn=list, ledger=sys.argv[2])
"""
WINDOWS = """
import gc, re, sys
from hyperpod_kit.data import ElasticLoader, IndexedDataset, PackedDataset, SampleIndex, ShuffledOrder, lengths_of
from tests.unit.data.killed_ranks import encode
data = IndexedDataset(SampleIndex.open(sys.argv[1]))
order = ShuffledOrder(len(data), 1, data.index.block_for())
packed = PackedDataset(data, encode, lengths_of(data, encode, "bytes"), window=64, order=order)
loader = ElasticLoader(packed, 32, order=packed.windows, collate_fn=list, ledger=sys.argv[2])
"""
EPOCHS = """
for epoch in range(10):
    for batch in loader:
        pass
    gc.collect()
    print(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


@pytest.mark.full
@pytest.mark.parametrize("program", [SAMPLES, WINDOWS], ids=["samples", "windows"])
def test_ten_epochs_take_as_much_memory_as_two(tmp_path, program):
    made = corpus(tmp_path / "corpus", 1200) if program is SAMPLES else documents(tmp_path / "corpus", 1200)
    words = [sys.executable, "-W", "ignore", "-c", program + EPOCHS, made.index.folder, str(tmp_path / "ledger")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    kib = [int(line) for line in done.stdout.split()]
    assert len(kib) == 10 and kib[9] - kib[1] < 1024, kib


NEW_PAGES = """
import resource, sys
import numpy as np
from hyperpod_kit.data import IndexedDataset, SampleIndex
data = IndexedDataset(SampleIndex.open(sys.argv[1]), decode=False)
numbers = np.random.default_rng(1).permutation(len(data)).reshape(-1, 64)
for epoch in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for batch in numbers:
        data.__getitems__(batch)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_a_batch_of_long_lines_gets_the_memory_of_the_one_before(tmp_path):
    """Each line of 64 KiB would get 16 new pages otherwise."""
    (tmp_path / "a.txt").write_bytes(b"".join(b"%06d" % n + b"x" * 65_530 + b"\n" for n in range(512)))
    folder = build_index([str(tmp_path)], str(tmp_path / "index")).index.folder
    done = subprocess.run([sys.executable, "-c", NEW_PAGES, folder], stdout=subprocess.PIPE, text=True, check=True)
    assert int(done.stdout.split()[1]) < 512
