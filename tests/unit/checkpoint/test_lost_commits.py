"""A root without a manifest: "nothing was ever committed" is concluded only where every record of a commit agrees."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

import pytest
import torch

from hyperpod_kit.checkpoint import Fresh, Manager, State
from hyperpod_kit.checkpoint.adapters import huggingface
from hyperpod_kit.checkpoint.commands import inspection, repair
from hyperpod_kit.checkpoint.repository import commit, selection
from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.records import (
    catalog,
    commit_records,
    flush_note,
    fresh_start,
    identity,
    lease,
    pins,
    rollbacks,
    tombstone,
)
from hyperpod_kit.checkpoint.repository.records.commit_records import CommitRecord, RootFacts
from hyperpod_kit.checkpoint.repository.records.flush_note import FlushNote
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.checkpoint.restore import loading
from hyperpod_kit.checkpoint.weights import weights
from hyperpod_kit.errors import CheckpointError, NoCheckpoint, NoValidCheckpoint
from hyperpod_kit.job.resume import checkpoint_choice, shared_decision
from tests.unit.checkpoint.small_checkpoint import SMALL_RUN, put_checkpoint

STATE = ".hpk"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "root" / STATE).mkdir(parents=True)
    return open_store(str(tmp_path / "root"))


# --- the records, each as its writer leaves it ------------------------------------------------------------------------


def put_row(store: Store, **row: object) -> None:
    with open(Path(store.url, STATE, "attempts.jsonl"), "a") as file:
        file.write(json.dumps({"t": 1.0, "job": "7", "restart": 0, **row}) + "\n")


def put_json(store: Store, file: str, **value: object) -> None:
    path = Path(store.url, STATE, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def put_latest(store: Store, attempt: str) -> None:
    store.overwrite_non_atomically("LATEST", manifest.seal_json({"format": "hpk-latest/1", "attempt": attempt}))


def put_note(store: Store, attempt: str) -> None:
    flush_note.write(store, "flushes/n1-aa.json", FlushNote("n1", "7", 1, 9, 90, 1000, committed=attempt))


RECORDS: Dict[str, Callable[[Store, str], None]] = {
    "LATEST": put_latest,
    "epoch-000002.json": lambda store, _: (commit.claim_epoch(store, SMALL_RUN, above=1, job={}), None)[1],
    ".hpk/attempts.jsonl": lambda store, attempt: put_row(store, event="attempt", **{"from": attempt}),
    ".hpk/verdicts/7.0.0/restored.json": lambda store, attempt: put_json(
        store, "verdicts/7.0.0/restored.json", source=attempt, step=1, tier="memory+storage"
    ),
    ".hpk/decisions/7.0.json": lambda store, attempt: put_json(
        store, "decisions/7.0.json", **{"from": attempt, "step": 1}
    ),
    "flushes/n1-aa.json": put_note,
    "pins/": lambda store, attempt: pins.pin(store, attempt),
    "leases/": lambda store, attempt: (lease.Lease(store, attempt, 1.0), None)[1],
    "rewinds/": lambda store, attempt: (rollbacks.pin_and_record_rollback(store, attempt, 1), None)[1],
}
"""File -> what makes it while the checkpoint is whole."""

GONE: Dict[str, Callable[[Path], None]] = {
    "its MANIFEST.json is gone": lambda attempt: (attempt / "MANIFEST.json").unlink(),
    "all of it is gone": shutil.rmtree,
}


def begun(store: Store) -> None:
    """What a run leaves that is killed before its first commit, in the middle of a save: all but a commit."""
    commit.claim_epoch(store, SMALL_RUN, above=0, job={}, first_seq=1)
    attempt = put_checkpoint(store, 1, nonce="beef", committed=False)
    store.create(f"{attempt}/{layout.EXTRA_FILE}", b"{}")
    store.create(f"{attempt}/{layout.INDEX_FILE}", b"")
    put_row(store, event="attempt", **{"from": "none"}, rejected=[])
    put_row(store, event="restored", **{"from": attempt}, tier="memory")
    put_row(store, event="ended", reached=59, **{"class": "crash"})
    put_json(store, "verdicts/6.0.0/restored.json", source="none", step=0, tier="")
    put_json(store, "verdicts/6.0.1/restored.json", source=attempt, step=1, tier="memory")
    put_json(store, "decisions/6.0.json", **{"from": "none", "step": 0})
    flush_note.write(store, "flushes/n1-bb.json", FlushNote("n1", "7", 1, 1, 1, 1000))


@pytest.mark.parametrize("gone", list(GONE))
def test_whatever_record_survives_nothing_begins_at_step_0(tmp_path: Path, gone: str) -> None:
    """All pairs of records, each alone, and all together: each that survives is named."""
    subsets: List[Sequence[str]] = [(), *((one,) for one in RECORDS), *itertools.combinations(RECORDS, 2), [*RECORDS]]
    for number, kept in enumerate(subsets):
        (tmp_path / str(number) / STATE).mkdir(parents=True)
        store = open_store(str(tmp_path / str(number)))
        begun(store)
        attempt = put_checkpoint(store, 5)
        os.unlink(Path(store.url, "LATEST"))
        for file in kept:
            RECORDS[file](store, attempt)
        if "pins/" not in kept:
            shutil.rmtree(Path(store.url, "pins"), ignore_errors=True)  # of the rewind
        GONE[gone](Path(store.url, attempt))
        if not kept:
            with pytest.raises(NoCheckpoint):
                selection.newest_complete(store)
            assert (
                checkpoint_choice.choose_requiring_root_present(
                    store.url, f"{store.url}/{STATE}", selection.newest_complete, {}, {}
                ).step
                == 0
            )
            continue
        with pytest.raises(NoValidCheckpoint) as refused:
            selection.newest_complete(store)
        with pytest.raises(NoValidCheckpoint):
            checkpoint_choice.choose_requiring_root_present(
                store.url, f"{store.url}/{STATE}", selection.newest_complete, {}, {}
            )
        assert [name for name, _ in refused.value.reasons] == [attempt]
        reason = refused.value.reasons[0][1]
        assert reason.endswith(gone)
        assert len(kept) > 2 or all(file in reason for file in kept), (kept, reason)
        assert refused.value.hint is not None
        assert f"checkpoint repair {store.url}" in refused.value.hint


class FailingStore(PosixStore):
    """Fails at one call, and with `for_good` at all that follow. `calls`: how many there were."""

    calls, fails_at, error, for_good = 0, -1, errno.EIO, False

    def _call(self, what: str) -> None:
        self.calls += 1
        number = self.calls - 1
        if number == self.fails_at or (self.for_good and 0 <= self.fails_at < number):
            raise OSError(self.error, os.strerror(self.error), what)

    def list(self, *given: Any, **more: Any) -> List[str]:
        self._call("list")
        return super().list(*given, **more)

    def read(self, *given: Any, **more: Any) -> bytes:
        self._call("read")
        return super().read(*given, **more)

    def sizes(self, *given: Any, **more: Any) -> Dict[str, int]:
        self._call("sizes")
        return super().sizes(*given, **more)

    def exists(self, *given: Any, **more: Any) -> bool:
        self._call("exists")
        return super().exists(*given, **more)


@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOENT])
@pytest.mark.parametrize("gone", list(GONE))
def test_an_error_of_storage_is_never_taken_for_never(tmp_path: Path, gone: str, error: int, for_good: bool) -> None:
    """Each call of a decision fails in turn. ENOENT stands for a server that has forgotten a handle."""
    store = open_store(str(tmp_path))
    (tmp_path / STATE).mkdir()
    attempt = put_checkpoint(store, 1)
    for file in ("epoch-000002.json", ".hpk/attempts.jsonl", "pins/"):
        RECORDS[file](store, attempt)
    GONE[gone](tmp_path / attempt)
    counting = FailingStore(str(tmp_path))
    with pytest.raises(NoValidCheckpoint):
        selection.newest_complete(counting)
    assert counting.calls > 5
    for number in range(counting.calls):
        failing = FailingStore(str(tmp_path))
        failing.fails_at, failing.error, failing.for_good = number, error, for_good
        with pytest.raises((OSError, NoValidCheckpoint)):
            selection.newest_complete(failing)


def test_a_run_that_was_killed_before_its_first_commit_begins_at_step_0(store: Store) -> None:
    begun(store)
    with pytest.raises(NoCheckpoint):
        selection.newest_valid(store)
    assert checkpoint_choice.choose(store.url).source == "none"
    assert selection.lost_commits_assuming_no_manifests(store) == []


def test_a_torn_hint_was_written_after_a_commit_all_the_same(store: Store) -> None:
    attempt = put_checkpoint(store, 1)
    shutil.rmtree(Path(store.url, attempt))
    Path(store.url, "LATEST").write_bytes(b'{"att')
    with pytest.raises(NoValidCheckpoint, match="LATEST: it is written only after a commit; it cannot be read"):
        selection.newest_valid(store)
    fresh_start.record_root_fresh_start(store, by="a person")
    with pytest.raises(NoCheckpoint):
        selection.newest_valid(store)


def test_a_tombstone_is_of_a_checkpoint_that_was_committed(store: Store) -> None:
    attempt = put_checkpoint(store, 1)
    tombstone.write(store, attempt, "bytes 0..1: expected …")
    shutil.rmtree(Path(store.url, attempt))
    os.unlink(Path(store.url, "LATEST"))
    with pytest.raises(NoValidCheckpoint, match=rf"as {attempt}\.BAD says"):
        selection.newest_valid(store)


def test_records_of_jobs_that_cannot_be_asked_do_not_agree(tmp_path: Path) -> None:
    store = open_store("memory://lost-records")
    put_checkpoint(store, 1)
    state = tmp_path / "state"
    store.create(".hpk/state.json", manifest.seal_json({"format": "hpk-state/1", "state": str(state)}))
    for name in store.list(str(catalog.newest_committed(store))):
        store.delete(f"{catalog.list_checkpoints(store)[0].checkpoint_id}/{name}")
    store.delete("LATEST")
    with pytest.raises(OSError, match="the records of its jobs are not there"):
        selection.newest_valid(store)
    state.mkdir()
    with pytest.raises(NoCheckpoint):
        selection.newest_valid(store)
    (state / "attempts.jsonl").write_text('{"event": "rewound", "from": "seq-000001.step-0000000001.e1-abcd"}\n')
    with pytest.raises(NoValidCheckpoint, match=r"attempts\.jsonl says"):
        selection.newest_valid(store)


# --- the pure function ------------------------------------------------------------------------------------------------

OLD, NEW = "seq-000003.step-0000000003.e1-abcd", "seq-000001.step-0000000001.e2-abcd"


def test_the_newest_comes_first_and_each_file_once() -> None:
    records = (CommitRecord("pins/", OLD), CommitRecord("LATEST", NEW), CommitRecord("pins/", OLD))
    found = commit_records.lost_commits_assuming_no_manifests(RootFacts(records, frozenset({OLD})))
    assert [(one.checkpoint_id, one.files, one.has_directory) for one in found] == [
        (NEW, ("LATEST",), False),
        (OLD, ("pins/",), True),
    ]


@pytest.mark.parametrize(
    ("epoch", "named", "lost"), [(0, (), [NEW, OLD]), (1, (), [NEW]), (2, (), []), (0, (NEW, OLD), []), (1, (NEW,), [])]
)
def test_what_was_left_to_begin_anew_is_not_lost(epoch: int, named: tuple[str, ...], lost: List[str]) -> None:
    records = (CommitRecord("pins/", OLD), CommitRecord("LATEST", NEW))
    facts = RootFacts(records, fresh_start=rollbacks.FreshStart(epoch, named))
    assert [one.checkpoint_id for one in commit_records.lost_commits_assuming_no_manifests(facts)] == lost


def test_people_are_named_some_and_the_number_of_the_rest() -> None:
    records = tuple(CommitRecord("pins/", f"seq-{seq:06d}.step-0000000001.e1-abcd") for seq in range(1, 21))
    reasons = commit_records.summarize_lost_commits(
        commit_records.lost_commits_assuming_no_manifests(RootFacts(records))
    )
    assert len(reasons) == 9
    assert reasons[-1] == ("older ones", "12 more were committed")


# --- whoever concludes "never" ----------------------------------------------------------------------------------------


def module() -> torch.nn.Linear:
    torch.manual_seed(1)
    return torch.nn.Linear(20, 20)


def lost_root(root: Path, saves: int = 3) -> List[str]:
    """A run's root that has lost all manifests; its attempts, the newest first."""
    with Manager(str(root), keep=None) as manager:
        state = State(module())
        manager.restore(state)
        for number in range(1, saves + 1):
            assert manager.save(10 * number - 1, state, on_busy="wait").wait("durable", 60)
    names = [entry.checkpoint_id for entry in catalog.list_checkpoints(str(root))]
    for name in names:
        (root / name / "MANIFEST.json").unlink()
    return names


def test_of_all_that_is_small_the_attempts_themselves_say_that_they_were_committed(tmp_path: Path) -> None:
    """LATEST and the manifests went, as whoever removes files of some bytes removes them together."""
    root = tmp_path / "root"
    names = lost_root(root)
    for file in ("LATEST", "epoch-000001.json"):
        (root / file).unlink()
    with pytest.raises(NoValidCheckpoint) as refused:
        selection.newest_complete(str(root))
    assert [name for name, _ in refused.value.reasons] == names[1:]
    assert f"it was committed, as {names[0]}/ says" in refused.value.reasons[0][1]
    # One alone may be that of a start that was killed before its first commit.
    for name in names[1:]:
        shutil.rmtree(root / name)
    with pytest.raises(NoCheckpoint):
        selection.newest_complete(str(root))
    # So may two of one save: what the trainer wrote, and what a flush wrote that was killed there, too.
    shutil.copytree(root / names[0], root / f"{names[0].rpartition('-')[0]}-beef00")
    with pytest.raises(NoCheckpoint):
        selection.newest_complete(str(root))


@pytest.mark.parametrize("begun", [None, 0, 1], ids=["no commit", "the older one's commit", "the newer one's commit"])
def test_two_saves_on_their_way_at_a_kill_are_no_lost_commits(tmp_path: Path, begun: int | None) -> None:
    """Shards are written side by side and committed one after the other: `begun` is whose commit the kill fell into."""
    root = tmp_path / "root"
    names = lost_root(root)
    (root / "LATEST").unlink()
    shutil.rmtree(root / names[2])
    for number, name in enumerate(names[:2]):
        if number != begun:
            (root / name / layout.EXTRA_FILE).unlink()
            (root / name / layout.INDEX_FILE).unlink()
    with pytest.raises(NoCheckpoint):
        selection.newest_complete(str(root))
    with Manager(str(root)) as manager:
        assert isinstance(manager.restore(State(module())), Fresh)


def test_where_all_small_files_are_gone_more_shards_than_can_be_on_their_way_say_so(tmp_path: Path) -> None:
    root = tmp_path / "root"
    names = lost_root(root, 4)
    (root / "LATEST").unlink()
    for name in names:
        (root / name / layout.EXTRA_FILE).unlink()
        (root / name / layout.INDEX_FILE).unlink()
    with pytest.raises(NoValidCheckpoint) as refused:
        selection.newest_complete(str(root))
    assert [name for name, _ in refused.value.reasons] == names[3:]


def test_an_attempt_that_is_not_whole_says_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    names = lost_root(root)
    (root / "LATEST").unlink()
    for name in names[1:]:
        shard = root / name / layout.shard_file(0)
        os.truncate(shard, shard.stat().st_size // 2)
    with pytest.raises(NoCheckpoint):
        selection.newest_complete(str(root))


def test_everybody_refuses_and_deletes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    names = lost_root(root)
    (root / STATE).mkdir()
    model = module()
    refused = pytest.raises(NoValidCheckpoint, match=f"{names[0]}: it was committed, as LATEST")
    for _ in range(2):  # the second time a start has left an epoch file, which names nothing
        with Manager(str(root)) as manager:
            with refused:
                manager.restore(State(model))
            with refused:
                manager.inspect()
            with pytest.raises(CheckpointError, match="holds checkpoints of this run"):
                manager.save(39, State(model))
    with refused:
        loading.load_state(root, State(model, rng=False))
    with refused:
        weights.load_weights(root, model)
    with refused:
        huggingface.get_last_checkpoint(root)
    with refused:
        inspection.newest_committed_checkpoint_id(open_store(str(root)))
    record = shared_decision.decide(str(root), str(root / STATE), "0@n1")
    assert (record["from"], record["error"]) == (None, "NoValidCheckpoint")
    assert [entry.checkpoint_id for entry in catalog.list_checkpoints(str(root))] == names
    capsys.readouterr()


def test_hpk_fresh_begins_anew_once_for_all_starts_that_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    names = lost_root(root)
    monkeypatch.setenv("HPK_FRESH", "1")
    with Manager(str(root)) as manager:
        state = State(module())
        assert manager.inspect() is None
        found = manager.restore(state)
        assert isinstance(found, Fresh)
        assert [name for name, _ in found.rejected] == names
        assert manager.save(4, state).wait("durable", 60)
    monkeypatch.delenv("HPK_FRESH")
    with Manager(str(root)) as manager:
        assert manager.restore(State(module())).next_step == 5
    newest = selection.newest_valid(str(root)).checkpoint_id
    shutil.rmtree(root / newest)
    with Manager(str(root)) as manager, pytest.raises(NoValidCheckpoint, match=newest):
        manager.restore(State(module()))  # what was lost since is another loss


def test_hpk_fresh_gives_up_nothing_that_can_be_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Manager(str(tmp_path / "root")) as manager:
        state = State(module())
        manager.restore(state)
        assert manager.save(9, state).wait("durable", 60)
    monkeypatch.setenv("HPK_FRESH", "1")
    with Manager(str(tmp_path / "root")) as manager:
        assert manager.restore(State(module())).next_step == 10


def test_going_back_takes_a_fresh_start_back(store: Store) -> None:
    names = [put_checkpoint(store, seq) for seq in (1, 2)]
    commit.claim_epoch(store, SMALL_RUN, above=1, job={})
    fresh_start.record_root_fresh_start(store, by="alice")
    with pytest.raises(NoCheckpoint):
        selection.newest_valid(store)
    assert [why for _, why in selection.excluded_by_rollback(store)] == []
    rollbacks.pin_and_record_rollback(store, names[0], catalog.highest_epoch_and_seq(store)[0])
    assert selection.newest_valid(store).checkpoint_id == names[0]


# --- the newest alone is lost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", list(GONE))
def test_who_goes_on_from_an_older_one_says_what_is_lost(tmp_path: Path, gone: str) -> None:
    root = tmp_path / "root"
    names = lost_root(root)
    body = (root / names[1] / "extra.json").exists()
    assert body, "the older one is whole but for its manifest"
    assert look_repaired(root) == [names[0], names[1], names[2]]
    GONE[gone](root / names[0])
    found = selection.newest_valid(str(root))
    assert (found.checkpoint_id, [name for name, _ in found.rejected]) == (names[1], [names[0]])
    assert found.rejected[0][1] == f"it was committed, as LATEST says, and {gone}"
    with Manager(str(root)) as manager:
        restored = manager.restore(State(module()))
    assert not isinstance(restored, Fresh)
    assert (restored.checkpoint_id, restored.rejected) == (names[1], found.rejected)


def look_repaired(root: Path) -> List[str]:
    """The attempts that have a manifest, after all were rebuilt."""
    store = open_store(str(root))
    whose = identity.read_or_infer_identity(store)
    assert whose is not None
    repair.rebuild_lost_manifests(store, whose, dry_run=False)
    return [entry.checkpoint_id for entry in selection.iter_committed_not_excluded_newest_first(store)]
