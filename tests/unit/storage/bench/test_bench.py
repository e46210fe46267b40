"""`storage bench`: what it finds, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.errors import Absent, HyperpodKitError, RunError
from hyperpod_kit.storage.bench import run, scratch
from hyperpod_kit.storage.bench.measurements import fio, probes, small, streams
from hyperpod_kit.storage.bench.measurements.shape import fit_shape
from hyperpod_kit.storage.bench.measurements.streams import BLOCK, StreamSample
from hyperpod_kit.storage.bench.replays import ReplayRequest
from hyperpod_kit.storage.bench.scratch import BudgetSpent, Scratch
from hyperpod_kit.storage.plan import calibration
from hyperpod_kit.system import mountinfo
from tests.support import wait
from tests.unit.storage.bench.poor_mount import poor_mount

MIB = 2**20
QUIET: Any = lambda line: None  # noqa: E731

COMMAND_ON_A_DISK_OF_ANY_FULLNESS = """
from hyperpod_kit.cli.main import main
from hyperpod_kit.storage.bench import scratch
scratch.MAX_SHARE = 1.0
main()
"""


@pytest.fixture
def disk_of_any_fullness(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the machine that runs the tests may be as full as it likes."""
    monkeypatch.setattr(scratch, "MAX_SHARE", 1.0)


def modelled(count: int, each: float, *, first: float, stream: float, whole: float = 1e18, noise: float = 1.0) -> Any:
    size = int(count * each)
    return StreamSample("read", count, size, (first + size / min(stream * count, whole)) * noise, True)


def test_c1_time_to_the_first_byte_and_bandwidth_come_back_within_10_percent() -> None:
    draw = random.Random(3)
    for first, stream in ((0.083, 306 * MIB), (0.001, 3e9), (0.5, 50e6)):
        samples = [
            modelled(1, each * stream * first, first=first, stream=stream, noise=draw.uniform(0.98, 1.02))
            for each in (0.2, 0.2, 5, 5, 20)
        ]
        found = fit_shape(samples)
        assert found is not None and found.whole is None
        assert found.first == pytest.approx(first, rel=0.1) and found.stream == pytest.approx(stream, rel=0.1)


def test_c2_the_rate_of_a_stream_and_of_all_come_back_with_the_knee() -> None:
    draw = random.Random(4)
    samples = [
        modelled(count, each, first=0.02, stream=200e6, whole=900e6, noise=draw.uniform(0.98, 1.02))
        for count, each in ((1, 16e6), (1, 128e6), (2, 128e6), (4, 128e6), (8, 128e6), (16, 128e6))
    ]
    found = fit_shape(samples)
    assert found is not None and found.whole == pytest.approx(900e6, rel=0.1)
    assert found.stream == pytest.approx(200e6, rel=0.1) and found.knee == pytest.approx(4.5, rel=0.1)
    assert found.error < 0.1


def test_what_no_sample_shows_is_not_claimed() -> None:
    assert fit_shape([]) is None and fit_shape([modelled(2, 1e6, first=0, stream=1e6)]) is None
    one_size = fit_shape([modelled(1, 1e6, first=0.5, stream=1e6)])
    assert one_size is not None and one_size.first == 0 and one_size.knee is None
    backwards = fit_shape([StreamSample("read", 1, 100, 2.0, True), StreamSample("read", 1, 200, 1.0, True)])
    assert backwards is not None and backwards.first == 0 and backwards.stream > 0


@pytest.mark.usefixtures("disk_of_any_fullness")
def test_c3_no_byte_is_written_past_the_budget(tmp_path: Path) -> None:
    with Scratch(tmp_path, 10 * MIB) as directory:
        directory.reserve_bytes_within_budget_and_room(6 * MIB, "one")
        with pytest.raises(BudgetSpent, match="5 MB more would exceed the budget; 4 MB are left"):
            directory.reserve_bytes_within_budget_and_room(5 * MIB, "two")
        directory.reserve_bytes_within_budget_and_room(4 * MIB, "three")
    assert list(tmp_path.iterdir()) == []


def test_c3_a_mount_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = os.statvfs(tmp_path)
    free = room.f_bavail * room.f_frsize
    whole = (room.f_blocks - room.f_bfree) * room.f_frsize + free
    used = 1 - free / whole
    monkeypatch.setattr(scratch, "MAX_SHARE", used + (1 - used) / 2)
    with Scratch(tmp_path, 2 * whole) as directory:
        directory.reserve_bytes_within_budget_and_room(MIB, "a little")
        with pytest.raises(BudgetSpent, match="a bench stops at"):
            directory.reserve_bytes_within_budget_and_room(0.75 * (1 - used) * whole, "most of it")


@pytest.mark.usefixtures("disk_of_any_fullness")
def test_c3_the_streams_of_a_whole_bench_keep_the_budget_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    take = Scratch.reserve_bytes_within_budget_and_room
    monkeypatch.setattr(
        Scratch,
        "reserve_bytes_within_budget_and_room",
        lambda self, size, what: (take(self, size, what), taken.append(size)),
    )
    found = run.measure_mount(run.parse_mount(str(tmp_path)), 100e6, (1, 2, 4), None, QUIET)
    assert found.left_out == [] and 50e6 < sum(taken) <= 100e6
    assert list(tmp_path.iterdir()) == []
    kinds = [(one.kind, one.streams) for one in found.streams]
    assert kinds == [(kind, count) for count in (1, 1, 2, 4) for kind in ("write", "read")]
    assert all(one.size == other.size for one, other in zip(found.streams[::2], found.streams[1::2]))
    assert found.small is not None and found.small.files == run.SMALL_FILES
    json.dumps(found.to_json())


@pytest.mark.usefixtures("disk_of_any_fullness")
def test_c3_what_the_budget_does_not_cover_is_named(tmp_path: Path) -> None:
    asked = ReplayRequest(10**12, 2, ("dcp",))
    found = run.measure_mount(run.parse_mount(str(tmp_path)), 9 * BLOCK, (1, 2), asked, QUIET)
    assert len(found.left_out) == 1 and "a checkpoint by dcp: 3,000,000 MB more" in found.left_out[0]
    with pytest.raises(HyperpodKitError, match="no save was measured"):
        run.to_calibration([found])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_c3_nothing_stays_when_it_is_stopped(tmp_path: Path, number: int, code: int) -> None:
    words = [sys.executable, "-c", COMMAND_ON_A_DISK_OF_ANY_FULLNESS, "storage", "bench", str(tmp_path)]
    bench = subprocess.Popen([*words, "--no-replay", "--budget", "3GiB"], stderr=subprocess.DEVNULL)
    try:
        wait.until(lambda: any(map(os.path.getsize, tmp_path.glob("*/streams/*"))), what="a stream that writes")
        bench.send_signal(number)
        assert bench.wait(60) == code
    finally:
        bench.kill()
        bench.wait()
    assert list(tmp_path.iterdir()) == []


def test_c4_a_disk_can_everything(tmp_path: Path) -> None:
    found = probes.run_probes(tmp_path)
    entry = mountinfo.mount_containing_path(mountinfo.read_mountinfo(), str(tmp_path))
    atimes = entry is not None and not {"noatime"} & set(entry.options)
    assert {name for name, one in found.items() if not one.can} <= ({"atime"} if not atimes else set())


@pytest.mark.needs("fuse")
def test_c4_a_mount_that_refuses_what_mountpoint_refuses_is_seen_so(tmp_path: Path) -> None:
    with poor_mount(tmp_path / "mount") as path:
        found = {name: one.can for name, one in probes.run_probes(path).items()}
    able = {"exclusive_create", "flock", "sync_directory"}
    assert {name for name, can in found.items() if can} == able


def test_c5_what_memory_holds_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(4 * MIB))
    assert streams.resident_share(path) == 1.0
    streams.drop_pages(path)
    entry = mountinfo.mount_containing_path(mountinfo.read_mountinfo(), str(tmp_path))
    in_memory = entry is not None and entry.fs_type in ("tmpfs", "ramfs", "overlay")
    assert streams.resident_share(path) < 0.1 or in_memory
    (tmp_path / "empty").touch()
    assert streams.resident_share(tmp_path / "empty") == 0


def test_streams_write_and_read_all_their_bytes_and_raise_what_one_of_them_raised(tmp_path: Path) -> None:
    wrote, back = streams.write_streams(tmp_path, 3, BLOCK), streams.read_streams(tmp_path, 3)
    assert wrote.size == back.size == 3 * BLOCK and {path.stat().st_size for path in tmp_path.iterdir()} == {BLOCK}
    with pytest.raises(FileExistsError):
        streams.write_streams(tmp_path, 1, BLOCK)
    assert small.measure_small_files(_new(tmp_path), 20).files == 20


def _new(path: Path) -> Path:
    (path / "new").mkdir()
    return path / "new"


FIO = """#!/bin/sh
echo "fio: warning"
case "$*" in *--rw=write*) kind=write;; *) kind=read;; esac
echo '{"jobs": [{"'$kind'": {"io_bytes": 8388608, "runtime": 2000}}]}'
"""


def test_fio_is_asked_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with the keys that fio's documentation names: fio itself is not on every machine."""
    program = tmp_path / "fio"
    program.write_text(FIO)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert fio.is_installed() and fio.measure_with_fio(tmp_path, "read", 2, BLOCK) == StreamSample(
        "read", 2, 8388608, 2.0, False
    )
    program.write_text("#!/bin/sh\necho none")
    with pytest.raises(RunError, match="not the JSON of fio"):
        fio.measure_with_fio(tmp_path, "read", 1, BLOCK)
    program.write_text("#!/bin/sh\necho full >&2; exit 1")
    with pytest.raises(RunError, match="full"):
        fio.measure_with_fio(tmp_path, "read", 1, BLOCK)


def test_a_mount_is_named_by_its_type_or_by_its_admin(tmp_path: Path) -> None:
    assert run.parse_mount(f"{tmp_path}=fsx-lustre").kind == "fsx-lustre"
    with pytest.raises(Absent, match="is not a directory"):
        run.parse_mount("/nowhere")


@pytest.mark.full
@pytest.mark.usefixtures("disk_of_any_fullness")
def test_a_checkpoint_is_replayed_by_each_writer_and_the_plan_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    mount, out = tmp_path / "mount", tmp_path / "calibration.json"
    mount.mkdir()
    asked = ReplayRequest(10_000_000, 2, ("hyperpod-kit", "dcp", "torch-save"))
    found = run.measure_mount(run.parse_mount(f"{mount}=fsx-lustre"), 200e6, (1,), asked, QUIET)
    assert found.left_out == [] and list(mount.iterdir()) == []
    calibration.save(run.to_calibration([found]), out)
    read = calibration.load(out)
    for writer, writers in (("hyperpod-kit", 2), ("dcp", 2), ("torch-save", 1)):
        rate = read.fitted_rate("fsx-lustre", writer)
        assert rate is not None and rate.samples == 2 and rate.writers == writers
        assert (rate.stall is not None) is (writer == "hyperpod-kit")


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_c3_nothing_stays_when_it_is_stopped_in_a_replay(tmp_path: Path, number: int) -> None:
    pytest.importorskip("torch")
    mount, shared = tmp_path / "mount", tmp_path / "shm"
    mount.mkdir()
    shared.mkdir()
    words = [sys.executable, "-c", COMMAND_ON_A_DISK_OF_ANY_FULLNESS, "storage", "bench", str(mount)]
    words += ["--budget", "600MB"]
    bench = subprocess.Popen(
        [*words, "--streams", "1"], stderr=subprocess.DEVNULL, env={**os.environ, "HPK_SHM_DIR": str(shared)}
    )
    try:
        wait.until(lambda: list(mount.glob("*/replay-hyperpod-kit/*/replay/root")), 120, what="a save of our engine")
        bench.send_signal(number)
        assert bench.wait(120) == 128 + number
    finally:
        bench.kill()
        bench.wait()
    assert list(mount.iterdir()) == [] and list(shared.iterdir()) == []
    assert not [one for one in Path("/proc").glob("[0-9]*") if _speaks_of(one, str(mount))]


def _speaks_of(process: Path, words: str) -> bool:
    try:
        return words.encode() in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    except OSError:
        return False
