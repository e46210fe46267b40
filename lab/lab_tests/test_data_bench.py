"""`data bench`: its figures, and other loaders beside ours."""

from __future__ import annotations

import json

from hyperpod_kit.cli.main import run_command_line
from tests.unit.data.conftest import more_workers_than_cores  # noqa: F401


def test_bench_says_what_this_machine_does(tmp_path, capsys):
    assert run_command_line(["data", "make-corpus", str(tmp_path / "c"), "--files", "3", "--kib", "200"]) == 0
    capsys.readouterr()
    assert (
        run_command_line(["data", "bench", str(tmp_path / "c"), "--samples", "128", "--workers", "0,1", "--json"]) == 0
    )
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["measurements"]}
    assert rows["ElasticLoader, 1 workers"]["samples"] == rows["plain DataLoader, 0 workers"]["samples"] == 128
    assert rows["index, cold"]["bytes"] == 3 * 200 * 1024
    assert rows["ElasticLoader, not decoded, cold"]["samples"] == 128
    assert all(row["processor"] > 0 for row in rows.values()), "what workers used counts when they have ended"
    assert 0 < rows["resume to the first batch"]["bytes"] < 128 * 2000
    assert run_command_line(["data", "bench", str(tmp_path / "c"), "--workers", "many"]) == 2


RIVALS = """
class Fast:
    name, module = "fast", "json"
    def prepare(self, paths, folder):
        open(folder + "/copy", "w").write(str(len(paths)))
    def loader(self, paths, folder, batch, workers):
        assert open(folder + "/copy").read() == "3"
        return iter(lambda: [0] * batch, None)

class Failing(Fast):
    name, module = "failing", "os"
    def loader(self, paths, folder, batch, workers):
        raise OSError("no shared memory")

class Broken(Fast):
    name, module = "broken", "re"
    def prepare(self, paths, folder):
        raise ImportError

class Absent(Fast):
    name, module = "absent", "hpk_no_such_module"

class Other(Fast):
    name = "another way of the same library"

RIVALS = (Fast, Failing, Broken, Absent, Other)
"""


def test_bench_beside_other_loaders(tmp_path, capsys):
    (tmp_path / "rivals.py").write_text(RIVALS)
    assert run_command_line(["data", "make-corpus", str(tmp_path / "c"), "--files", "3", "--kib", "50"]) == 0
    capsys.readouterr()
    options = ["--samples", "64", "--workers", "0", "--passes", "3", "--rivals", str(tmp_path / "rivals.py")]
    assert run_command_line(["data", "bench", str(tmp_path / "c"), *options]) == 0
    captured = capsys.readouterr()
    assert "absent: not installed\n" in captured.out and "broken: ImportError: \n" in captured.out
    assert "failing, 0 workers: OSError: no shared memory\n" in captured.out
    assert "fast, 0 workers" in captured.out and "fast, 0 workers: 3 of 3" in captured.err
    assert "another way of the same library, 0 workers" in captured.out
    assert " us of processor a sample\n" in captured.out
    assert run_command_line(["data", "bench", str(tmp_path / "c"), "--rivals", str(tmp_path / "none.py")]) == 2
    assert run_command_line(["data", "bench", str(tmp_path / "c"), "--passes", "0"]) == 2
