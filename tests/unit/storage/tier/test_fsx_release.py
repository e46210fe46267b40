"""Checkpoints that FSx exports and releases: its tasks and `lfs` are stand-ins, for no Lustre runs here."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, cast

import pytest
from botocore.stub import Stubber

from hyperpod_kit.aws.fsx import Fsx
from hyperpod_kit.checkpoint.repository.records import catalog, pins
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.cli.main import run_command_line as command
from hyperpod_kit.errors import Absent, AwsError, UsageError
from hyperpod_kit.storage.tier import run as tiering
from hyperpod_kit.storage.tier.fsx_link import LinkedRoot, locate_linked_roots
from hyperpod_kit.storage.tier.fsx_release import EXPORT, RELEASE, FsxRelease
from hyperpod_kit.storage.tier.rules import TierItem, TierRule
from hyperpod_kit.system import mountinfo
from tests.support.runner import RecordingRunner
from tests.unit.checkpoint.small_checkpoint import put_checkpoint

ID = "fs-0123456789abcdef0"
RULE = TierRule(older_than=0.0, keep=2)
NOW = 2_000_000_000.0


class StandIn:
    """FSx, its tasks done at once, and `lfs hsm_state` over the same files. `passes_over`: files that a task leaves as
    they are, so many times; `before`: called as a task begins."""

    def __init__(self, mount: Path) -> None:
        self.mount = mount
        self.runner = RecordingRunner({"lfs hsm_state": self._hsm_state})
        self.flags: Dict[str, int] = {}
        self.tasks: List[tuple[str, tuple[str, ...], str]] = []
        self.passes_over: Dict[str, int] = {}
        self.before: Callable[[str], object] = lambda kind: None
        self.ends = "SUCCEEDED"
        self.refuses = False

    def file_system(self, file_system_id: str) -> Optional[dict[str, Any]]:
        return {"LustreConfiguration": {"MountName": "abcd"}} if file_system_id == ID else None

    def data_repository_associations(self, file_system_id: str) -> list[dict[str, Any]]:
        one = {"FileSystemPath": "/runs/", "DataRepositoryPath": "s3://bucket/runs/", "Lifecycle": "AVAILABLE"}
        return [one, {**one, "FileSystemPath": "/gone", "Lifecycle": "DELETING"}]

    def create_data_repository_task(
        self, file_system_id: str, kind: str, paths: Sequence[str], report_s3_path: str
    ) -> str:
        if self.refuses:
            raise AwsError("CreateDataRepositoryTask", "DataRepositoryTaskExecuting", "one is running")
        self.before(kind)
        self.tasks.append((kind, tuple(paths), report_s3_path))
        for path in paths:
            for file in sorted((self.mount / path).iterdir()):
                flags = self.flags.get(str(file), 0)
                if self.passes_over.get(file.name, 0):
                    self.passes_over[file.name] -= 1
                elif kind == EXPORT:
                    self.flags[str(file)] = flags | 0x9
                elif flags & 0xB == 0x9:
                    self.flags[str(file)] = flags | 0x4
        return f"task-{len(self.tasks)}"

    def describe_data_repository_task(self, task_id: str) -> dict[str, Any]:
        counts = {"TotalCount": 4, "SucceededCount": 2}
        return {"Lifecycle": self.ends, "Status": counts, "FailureDetails": {"Message": "S3 said no"}}

    def _hsm_state(self, argv: Sequence[str]) -> str:
        return "".join(f"{path}: (0x{self.flags.get(path, 0):08x})\n" for path in argv[2:])

    @property
    def kinds(self) -> List[str]:
        return [kind for kind, _, _ in self.tasks]


class Place:
    """A run of five checkpoints at /runs/one of a file system that is mounted at `mount`."""

    def __init__(self, mount: Path) -> None:
        self.root = mount / "runs" / "one"
        self.root.mkdir(parents=True)
        self.store = PosixStore(str(self.root))
        self.names = [put_checkpoint(self.store, seq) for seq in range(1, 6)]
        self.fsx = StandIn(mount)
        self.mounts = f"1 1 0:1 / / rw - ext4 /dev/x rw\n2 1 0:2 / {mount} rw - lustre 10.0.0.1@tcp:/abcd rw\n"
        self.said: List[str] = []
        self.seconds = 0.0

    def release(self) -> tiering.TierResult:
        planned = tiering.make_plan([str(self.root)], RULE, NOW)
        links = locate_linked_roots(self.fsx, ID, [one.store.url for one in planned.roots], self.mounts)
        with_clock = {"clock": lambda: self.seconds, "sleep": self._sleep, "patience": 300.0}
        by_fsx = FsxRelease(ID, links, self.fsx, self.fsx.runner, self.said.append, **with_clock)  # type: ignore[arg-type]
        return by_fsx.release_checkpoints(planned, RULE, lambda item: None)

    def _sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def released(self) -> List[str]:
        """Checkpoints of which a shard has left the file system."""
        found = {Path(path).parent.name for path, flags in self.fsx.flags.items() if flags & 0x4}
        return [name for name in self.names if name in found]


@pytest.fixture
def place() -> Iterator[Place]:
    """In memory: every file is synced."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield Place(Path(os.path.realpath(made)))


def test_what_a_rule_lets_go_is_exported_and_then_released_and_a_second_time_is_nothing(place: Place) -> None:
    done = place.release()
    assert [one.attempt for one in done.removed] == place.names[:3] == place.released() and not done.retained
    paths = tuple(f"runs/one/{name}" for name in place.names[:3])
    report = "s3://bucket/runs/.hyperpod-kit/tasks"
    assert place.fsx.tasks == [(EXPORT, paths, report), (RELEASE, paths, report)]
    assert {entry.checkpoint_id for entry in catalog.list_checkpoints(place.store)} == set(place.names)
    again = place.release()
    assert [one.attempt for one in again.removed] == place.names[:3] and len(place.fsx.tasks) == 2


def test_a_file_that_a_task_passes_over_is_asked_for_again_and_named_in_the_end(place: Place) -> None:
    place.fsx.passes_over = {"extra.json": 4}
    done = place.release()
    assert len(done.removed) == 3 and place.fsx.kinds == [EXPORT, EXPORT, EXPORT, RELEASE]
    place.fsx.flags.clear()
    place.fsx.passes_over = {"extra.json": 99}
    done = place.release()
    assert not done.removed and place.fsx.kinds[4:] == [EXPORT] * 3 and not place.released()
    assert [path for path, _ in done.retained] == [f"{place.root}/{name}" for name in place.names[:3]]
    assert "EXPORT_TO_REPOSITORY: not all of its files; see s3://bucket/runs/.hyperpod-kit/tasks" in done.retained[0][1]


def test_a_file_that_was_written_to_after_its_export_keeps_its_checkpoint_here(place: Place) -> None:
    """FSx leaves it as it is."""

    def written(kind: str) -> None:
        if kind == RELEASE:
            place.fsx.flags.update({path: 0xB for path in place.fsx.flags if place.names[0] in path})

    place.fsx.before = written
    done = place.release()
    assert place.fsx.kinds == [EXPORT, RELEASE, RELEASE, RELEASE]
    assert [one.attempt for one in done.removed] == place.names[1:3] == place.released()
    assert [path for path, _ in done.retained] == [f"{place.root}/{place.names[0]}"]


@pytest.mark.parametrize("when", [EXPORT, RELEASE])
def test_a_pin_that_comes_between_two_tasks_keeps_its_checkpoint(place: Place, when: str) -> None:
    """Before the first task, or while that runs."""
    pinned = place.names[1]
    if when == EXPORT:
        pins.pin(place.store, pinned)
    else:
        place.fsx.before = lambda kind: pins.pin(place.store, pinned) if kind == EXPORT else None
    done = place.release()
    assert place.released() == [place.names[0], place.names[2]]
    assert [path for path, _ in done.retained] == ([] if when == EXPORT else [f"{place.root}/{pinned}"])


def test_the_newest_valid_ones_stay_though_the_newest_is_damaged(place: Place) -> None:
    shard = next((place.root / place.names[4]).glob("shard-*"))
    shard.chmod(0o600)
    shard.write_bytes(b"x" * shard.stat().st_size)
    place.release()
    assert place.released() == place.names[:2]


def test_a_task_that_fails_or_stands_still_or_is_refused_ends_with_its_words(place: Place) -> None:
    place.fsx.ends, place.fsx.passes_over = "FAILED", {"extra.json": 99}
    assert "task-3 S3 said no" in place.release().retained[0][1]
    place.fsx.ends = "EXECUTING"
    done = place.release()
    assert len(done.retained) == 3 and "has shown no progress for 300 s" in done.retained[0][1] and place.seconds >= 300
    assert any("2 of 4 files" in words for words in place.said)
    place.fsx.refuses = True
    assert "DataRepositoryTaskExecuting" in place.release().retained[0][1]
    assert not place.released()


def test_a_run_that_fsx_cannot_reach_is_refused(place: Place) -> None:
    roots = [str(place.root)]
    inside = place.mounts.replace("/abcd ", "/abcd/team ")
    elsewhere = place.mounts.replace(":/abcd", ":/other")
    with pytest.raises(Absent, match="no such Lustre file system"):
        locate_linked_roots(place.fsx, "fs-00000000000000000", roots, place.mounts)
    for found, mounts, words in (
        (ID, "1 1 0:1 / / rw - ext4 /dev/x rw\n", "not on Lustre"),
        (ID, elsewhere, "mounts as other"),
        (ID, inside, "/team/runs/one; linked directories: /runs/"),
    ):
        with pytest.raises(UsageError, match=words):
            locate_linked_roots(place.fsx, found, roots, mounts)
    assert locate_linked_roots(place.fsx, ID, roots, place.mounts)[roots[0]].path == "/runs/one"
    mount = str(place.fsx.mount)
    deeper = f"2 1 0:2 /one {mount}/runs/one rw - lustre a@tcp:/abcd/runs rw\n"
    assert locate_linked_roots(place.fsx, ID, roots, deeper)[roots[0]].path == "/runs/one"


def test_a_task_takes_a_hundred_and_is_of_one_link(place: Place) -> None:
    items = [TierItem("/a" if number < 150 else "/b", str(number), None, 1, "1") for number in range(160)]
    links = {"/a": LinkedRoot("/a", "s3://one"), "/b": LinkedRoot("/b", "s3://two")}
    by_fsx = FsxRelease(ID, links, place.fsx, cast(Any, place.fsx), print)
    assert [len(batch) for batch in by_fsx._batches(items)] == [100, 50, 10]


def test_the_calls_have_the_shapes_that_fsx_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """moto has none of them."""
    fsx = Fsx("us-east-1")
    task = {"TaskId": "task-0123456789abcdef0", "Lifecycle": "PENDING", "Type": RELEASE, "CreationTime": 0}
    wanted = {
        "FileSystemId": ID,
        "Paths": ["runs/one/a"],
        "Report": {"Enabled": True, "Path": "s3://b/r", "Format": "REPORT_CSV_20191124", "Scope": "FAILED_FILES_ONLY"},
    }
    released = {"ReleaseConfiguration": {"DurationSinceLastAccess": {"Unit": "DAYS", "Value": 0}}}
    create = "create_data_repository_task"
    with Stubber(fsx._client) as stub:
        stub.add_response(create, {"DataRepositoryTask": task}, {**wanted, "Type": EXPORT})
        stub.add_response(create, {"DataRepositoryTask": task}, {**wanted, **released, "Type": RELEASE})
        assert {
            fsx.create_data_repository_task(ID, kind, ["runs/one/a"], "s3://b/r") for kind in (EXPORT, RELEASE)
        } == {task["TaskId"]}
        stub.add_client_error(create, "DataRepositoryTaskExecuting", "one is running")
        with pytest.raises(AwsError, match="one is running"):
            fsx.create_data_repository_task(ID, EXPORT, ["runs/one/a"], "s3://b/r")
        stub.add_response(
            "describe_data_repository_tasks", {"DataRepositoryTasks": [task]}, {"TaskIds": [task["TaskId"]]}
        )
        assert fsx.describe_data_repository_task(str(task["TaskId"]))["Lifecycle"] == "PENDING"
        asked = {"Filters": [{"Name": "file-system-id", "Values": [ID]}]}
        stub.add_response("describe_data_repository_associations", {"Associations": [{"FileSystemPath": "/a"}]}, asked)
        assert fsx.data_repository_associations(ID) == [{"FileSystemPath": "/a"}]
        stub.assert_no_pending_responses()
    for paths in ([], [""], ["/"], ["runs/one/a", "./"]):
        with pytest.raises(ValueError, match="whole file system"):
            fsx.create_data_repository_task(ID, RELEASE, paths, "s3://b/r")


def test_the_command_says_what_would_go_and_then_lets_it_go(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hyperpod_kit.aws.fsx.Fsx", lambda: place.fsx)
    monkeypatch.setattr("hyperpod_kit.run.LocalRunner", lambda: place.fsx.runner)
    monkeypatch.setattr(mountinfo, "read_mountinfo", lambda *path: place.mounts)
    words = ["storage", "tier", str(place.root), "--release", ID, "--older-than", "1d", "--keep", "2", "--json"]
    assert command([*words, "--dry-run"]) == 0
    assert not json.loads(capsys.readouterr().out)["gone"] and not place.fsx.tasks
    assert command(words) == 0
    answer = capsys.readouterr()
    assert json.loads(answer.out)["gone"] == [f"{place.root}/{name}" for name in place.names[:3]]
    assert "task-2: RELEASE_DATA_FROM_FILESYSTEM of 3 checkpoints" in answer.err
    assert command([*words, "--delete"]) == 2
