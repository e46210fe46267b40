"""The two programs that measure processor time: each comes to its end with a figure for each of its rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parents[1] / "programs"


def lines_of(program: str, *words: str) -> list[Any]:
    """The JSON that it prints. It exits with 1 where a bar is missed, which a busy machine may do."""
    done = subprocess.run([sys.executable, str(PROGRAMS / program), *words, "--json"], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_an_agent_and_a_job_run_are_measured_until_they_have_started() -> None:
    (rows,) = lines_of("start_up.py", "--repeat", "1", "--only", "agent,job run")
    assert list(rows) == ["python -c pass", "agent", "job run"]
    assert all(row["seconds"] > 0 for row in rows.values())
    assert all(rows[name]["beyond_limit"] > 0 and rows[name]["ratio"] > 0 for name in ("agent", "job run"))


def test_saves_and_restores_of_many_tensors_are_measured_beside_torchs(tmp_path: Path, shm: Path) -> None:
    pytest.importorskip("torch")
    of_workloads = lines_of("many_tensors.py", str(tmp_path), "--tensors", "40", "--repeat", "2", "--restores", "1")
    assert [figures["workload"] for figures in of_workloads] == ["training", "extra"]
    for figures in of_workloads:
        counts = {name: len(samples) for name, samples in figures["seconds"].items()}
        assert counts == {"first save": 1, "save": 2, "torch.save": 2, "restore": 1, "torch.load": 1}
