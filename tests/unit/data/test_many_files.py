"""Very many small files: indexed with bounded memory, nothing read the second time, and each of them found again.

Five thousand in each run, a million where it is `full` (`make test-all`).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pytest

from hyperpod_kit.data import IndexedDataset, SampleIndex
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.reading import source_files

PROGRAM = """
import json, resource, sys
from hyperpod_kit.data.index.build import build_index
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
made = build_index([sys.argv[1]], sys.argv[2])
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"read": made.read, "known": made.reused, "samples": made.index.samples, "kib": after - before}))
"""
A_FILE = 4096
"""Bytes of memory that a file may cost while it is indexed."""


def index(folder, place):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(place)], stdout=subprocess.PIPE, check=True, text=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("files", [5_000, pytest.param(1_000_000, marks=[pytest.mark.full, pytest.mark.timeout(3000)])])
def test_each_of_them_is_a_sample(tmp_path, files):
    for number in range(files):
        if number % 1000 == 0:
            folder = tmp_path / "corpus" / f"{number // 1000:04}"
            folder.mkdir(parents=True)
        handle = os.open(f"{folder}/{number:07}.txt", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(handle, b"%d" % number)
        os.close(handle)
    place = tmp_path / "index"
    first = index(tmp_path / "corpus", place)
    assert (first["read"], first["samples"]) == (files, files) and first["kib"] * 1024 < files * A_FILE + (64 << 20), (
        first
    )
    again = index(tmp_path / "corpus", place)
    assert (again["read"], again["known"]) == (0, files)
    data = IndexedDataset(SampleIndex.open(place))
    dice = random.Random(0)
    asked = [0, files - 1, *(dice.randrange(files) for _ in range(2000))]
    assert [int(one) for one in data.__getitems__(asked)] == asked
    assert len(data._files._open) <= 128, "files are closed again"


def test_a_process_that_ends_says_nothing_of_its_files(tmp_path, monkeypatch):
    """Python takes modules down before the last objects are let go of."""
    (tmp_path / "a.txt").write_text("one\n")
    files = source_files.SourceFiles()
    files.read(
        IndexedDataset(build_index([str(tmp_path / "a.txt")], str(tmp_path / "index")).index)._indexed_file(0), 0, 3
    )
    for module in ("contextlib", "os"):
        with monkeypatch.context() as late:
            late.setattr(source_files, module, None)
            files.__del__()
    files.close()
