"""`storage preload`: the end is one that can be trusted, on Lustre's HSM (a stand-in) and through a mount."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest

from hyperpod_kit.cli.main import run_command_line as command
from hyperpod_kit.errors import Absent
from hyperpod_kit.run import LocalRunner
from hyperpod_kit.storage.preload import files, hsm, jobs, read_through, run
from hyperpod_kit.storage.preload.hsm import PreloadError

FAKE = Path(__file__).with_name("fake_lfs.py")
HERE, RELEASED, LOST = 0x9, 0xD, 0x4D


class FakeLustre:
    """A directory that `lfs` says is on Lustre; names have spaces, quotes and an end of a line."""

    NAMES = ("a b", "it's", "line\nend", "ünï", "plain", "here already")

    def __init__(self, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = tmp_path / "fsx"
        self.root.mkdir()
        for name in self.NAMES:
            (self.root / name).write_bytes(b"x" * 1000)
        self.mounts = f"1 1 0:1 / / rw - ext4 /dev/x rw\n2 1 0:2 / {self.root} rw - lustre a@tcp:/b rw\n"
        self._state = tmp_path / "lfs.json"
        flags = {str(self.root / name): RELEASED for name in self.NAMES} | {str(self.root / "here already"): HERE}
        self.write({"flags": flags, "queue": {}, "slow": 2, "drops": {}})
        program = tmp_path / "bin" / "lfs"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {FAKE} "$@"\n')
        program.chmod(0o755)
        patch.setenv("FAKE_LFS", str(self._state))
        patch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def write(self, state: Dict[str, Any]) -> None:
        self._state.write_text(json.dumps(state))

    def change(self, change: Callable[[Dict[str, Any]], Any]) -> None:
        state = json.loads(self._state.read_text())
        change(state)
        self.write(state)

    @property
    def flags(self) -> Dict[str, int]:
        found: Dict[str, int] = json.loads(self._state.read_text())["flags"]
        return found

    def preload(self) -> run.PreloadResult:
        wanted = files.list_files([str(self.root)])
        self.said: List[str] = []
        return run.run_preload(
            wanted,
            run.group_files_by_hsm_or_read_through(wanted, self.mounts),
            LocalRunner(),
            self.said.append,
            patience=5,
        )


@pytest.fixture
def lustre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLustre:
    return FakeLustre(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = hsm.restore_and_wait.__kwdefaults__ or {}
    monkeypatch.setattr(hsm.restore_and_wait, "__kwdefaults__", {**defaults, "sleep": lambda seconds: None})


def test_everything_that_was_released_is_here_at_the_end(lustre: FakeLustre) -> None:
    lustre.change(lambda state: state["drops"].update({str(lustre.root / "plain"): 2}))  # two requests are lost
    done = lustre.preload()
    assert done.is_complete and done.ways == {run.LUSTRE: 6} and done.size == 6000
    assert set(lustre.flags.values()) == {HERE}
    assert lustre.said[-1] == "6 of 6 files restored"


def test_what_is_not_here_is_named(lustre: FakeLustre) -> None:
    gone, dropped = str(lustre.root / "line\nend"), str(lustre.root / "ünï")

    def break_two(state: Dict[str, Any]) -> None:
        state["flags"][gone] = LOST
        state["drops"][dropped] = 100

    lustre.change(break_two)
    done = lustre.preload()
    assert set(done.failed) == {gone, dropped} and not done.is_complete
    assert "lost" in done.failed[gone] and "dropped each request" in done.failed[dropped]


def test_released_again_before_the_end_is_not_here(lustre: FakeLustre, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = files.list_files([str(lustre.root)])
    victim = str(lustre.root / "it's")

    def told(line: str) -> None:
        if line.startswith("6 of 6"):
            lustre.change(lambda state: state["flags"].update({victim: RELEASED}))

    done = run.run_preload(wanted, run.group_files_by_hsm_or_read_through(wanted, lustre.mounts), LocalRunner(), told)
    assert list(done.failed) == [victim] and "released again" in done.failed[victim]


@pytest.mark.parametrize("text", ["", "/a (0x00000009)", "/b: (0x00000009)", "/a: (0x9)", "cannot get HSM state"])
def test_what_lfs_does_not_print(text: str) -> None:
    with pytest.raises(PreloadError, match=r"expected its path"):
        hsm.parse_hsm_flags(text, ["/a"])


def test_through_a_mount_every_byte_is_read_and_a_cut_file_is_named(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    for name, size in (("empty", 0), ("small", 10), ("large", read_through.BLOCK * 2 + 3)):
        (place / name).write_bytes(os.urandom(size))
    (place / "elsewhere").symlink_to("/etc")
    os.mkfifo(place / "fifo")
    wanted = files.list_files([str(place), str(place / "small")])
    assert [Path(one.path).name for one in wanted.files] == ["empty", "large", "small"]
    read: List[int] = []
    assert read_through.read_files_through(wanted.files, read.append) == {} and read[-1] == wanted.total_bytes
    os.truncate(place / "large", read_through.BLOCK)
    (place / "small").unlink()
    failed = read_through.read_files_through(wanted.files, read.append)
    assert "ends at" in failed[str(place / "large")] and failed[str(place / "small")] == "No such file or directory"


def test_the_rate_is_kept() -> None:
    now = [0.0]
    pace = read_through.PreloadPace(100.0, lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    for _ in range(10):
        pace.wait_for_allowance(50)
    assert now[0] == pytest.approx(5.0)


def test_a_list_of_paths_and_places_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "b c").write_text("22")
    lines = tmp_path / "list"
    lines.write_text(f"{tmp_path}/a\n\n{tmp_path}/b c\n")
    assert files.list_files([], lines).total_bytes == 3
    lines.write_text(f"{tmp_path}/a\0{tmp_path}/b c\0")
    assert files.list_files([], lines).total_bytes == 3
    with pytest.raises(Absent, match="No such file"):
        files.list_files([str(tmp_path / "absent")])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert command(["storage", "preload", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["whole"] is True
    words = ["storage", "preload", str(tmp_path), "--partition", "cpu", "--then", "--auto-resume=1 'my train.sbatch'"]
    assert command([*words, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "--partition=cpu" in found["preload"] and "--requeue" in found["preload"]
    assert "--kill-on-invalid-dep=yes" in found["job"] and found["job"][-1] == "my train.sbatch"
    assert command(["storage", "preload", str(tmp_path), "--partition", "cpu"]) == 2
    assert command(["storage", "preload"]) == 2


def test_a_job_that_is_refused_takes_its_preload_with_it(tmp_path: Path) -> None:
    class Refusing:
        target = ""

        def __init__(self) -> None:
            self.calls: List[List[str]] = []

        def run(self, argv: Any, **options: Any) -> Any:
            self.calls.append(list(argv))
            if any("--dependency" in word for word in argv):
                raise PreloadError("sbatch: error: invalid partition")
            return type("Done", (), {"stdout": "41;cluster\n"})()

    (tmp_path / "t.sbatch").write_text("#!/bin/sh\n")
    runner = Refusing()
    with pytest.raises(PreloadError, match="invalid partition"):
        jobs.submit_jobs(runner, ["sbatch", "x"], [str(tmp_path / "t.sbatch")])
    assert runner.calls[-1] == ["scancel", "41"]
