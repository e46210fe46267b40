"""The bench of loaders side by side, with ours alone: what it reads is proved, and it goes on behind its rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs/rivals/data_rows.py"
CELLS = {(corpus, place) for corpus in ("lines-64k", "tars") for place in ("warm", "cold", "s3")}


def rows_after(folder, *words):
    small = ("--loaders", "Elastic", "--part", "0.001", "--passes", "1", "--workers", "2")
    corpora = ("--corpora", "lines-64k", "tars")
    command = [sys.executable, str(PROGRAM), "--folder", str(folder), *small, *corpora, *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()], done.stdout


@pytest.mark.full
@pytest.mark.timeout(600)
def test_what_is_read_is_proved_and_a_second_start_goes_on(tmp_path):
    pytest.importorskip("pyarrow", reason="the package pyarrow is not installed")
    rows, _ = rows_after(tmp_path, "--places", "warm")
    assert len(rows) == 2
    rows, said = rows_after(tmp_path)
    assert {(row["corpus"], row["place"]) for row in rows} == CELLS and len(rows) == len(CELLS)
    for row in rows:
        assert row["right"] and not row["note"], row
        assert row["us"] > 0 and row["pss"] >= row["pss_without_files"] > 0 and row["passes"] == 1
        assert row["seconds"] >= row["first"] > 0
    assert said.count("ElasticLoader") == 1 and said.count("| lines of 64 KB") == 3
    assert len(rows_after(tmp_path)[0]) == len(CELLS)
