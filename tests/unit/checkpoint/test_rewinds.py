"""Going back on purpose: what was left stays left, after whatever kind of restart, until somebody goes there again."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from hyperpod_kit.checkpoint.repository import retention, selection
from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.policy import Latest
from hyperpod_kit.checkpoint.repository.records import catalog, pins, rollbacks
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint
from tests.unit.checkpoint.small_checkpoint import put_checkpoint


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "root").mkdir()
    return open_store(str(tmp_path / "root"))


def back(store: Store, attempt: str, by: str = "") -> None:
    rollbacks.pin_and_record_rollback(store, attempt, catalog.highest_epoch_and_seq(store)[0], by)


def newest(store: Store) -> str:
    assert selection.newest_valid(store).checkpoint_id == selection.newest_complete(store).checkpoint_id
    return selection.newest_complete(store).checkpoint_id


def test_what_is_newer_is_left_and_what_comes_after_is_not(store: Store) -> None:
    names = [put_checkpoint(store, seq) for seq in (1, 2, 3, 4)]
    back(store, names[1], "alice")
    assert newest(store) == names[1]
    assert [entry.checkpoint_id for entry in selection.iter_committed_not_excluded_newest_first(store)] == [
        names[1],
        names[0],
    ]
    # A capture of the branch that was left, which a flush commits late.
    late = put_checkpoint(store, 5)
    assert newest(store) == names[1]
    after = put_checkpoint(store, 3, epoch=2, step=30)
    assert newest(store) == after
    shutil.rmtree(Path(store.url, after))
    assert newest(store) == names[1], "and never the branch that was left"
    assert {name for name, _ in selection.excluded_by_rollback(store)} == {names[2], names[3], late}


def test_whoever_names_one_that_was_left_is_heard(store: Store) -> None:
    names = [put_checkpoint(store, seq) for seq in (1, 2, 3)]
    back(store, names[0])
    assert [
        entry.checkpoint_id for entry in selection.iter_committed_not_excluded_newest_first(store, start_at=names[2])
    ] == [
        names[2],
        names[0],
    ]


def test_going_on_from_one_that_was_left_takes_the_step_back_away(store: Store) -> None:
    names = [put_checkpoint(store, seq) for seq in (1, 2, 3, 4)]
    back(store, names[0])
    back(store, names[2])
    assert newest(store) == names[2]
    assert [entry.checkpoint_id for entry in selection.iter_committed_not_excluded_newest_first(store)] == [
        names[2],
        names[1],
        names[0],
    ]
    [standing] = rollbacks.read_active_records(store)
    assert isinstance(standing, rollbacks.Rollback) and standing.attempt == names[2]


def test_two_steps_back_leave_two_branches(store: Store) -> None:
    first = [put_checkpoint(store, seq) for seq in (1, 2, 3)]
    back(store, first[1])
    second = [put_checkpoint(store, seq, epoch=2) for seq in (3, 4)]
    back(store, second[0])
    assert [entry.checkpoint_id for entry in selection.iter_committed_not_excluded_newest_first(store)] == [
        second[0],
        first[1],
        first[0],
    ]


def test_nothing_but_what_was_left_is_no_reason_to_start_from_scratch(store: Store) -> None:
    names = [put_checkpoint(store, seq) for seq in (1, 2)]
    back(store, names[0])
    shutil.rmtree(Path(store.url, names[0]))
    with pytest.raises(NoValidCheckpoint, match=f"left on purpose: the run went back to {names[0]}"):
        selection.newest_complete(store)


def test_the_checkpoint_that_was_gone_back_to_outlives_every_policy(store: Store) -> None:
    names = [put_checkpoint(store, seq) for seq in (1, 2, 3)]
    back(store, names[0])
    for seq in (2, 3, 4, 5):
        put_checkpoint(store, seq, epoch=2)
    items = retention.judge_all_checkpoints(store)
    assert names[0] in dict(retention.plan(items, Latest(1)).keep) and names[0] in pins.pinned_checkpoints(store)


def test_a_name_that_is_not_there_is_refused_and_leaves_no_record(store: Store) -> None:
    put_checkpoint(store, 1)
    with pytest.raises(CheckpointError, match="not a committed checkpoint"):
        back(store, str(layout.CheckpointId(9, 9, 1, "abcd")))
    assert store.list(layout.ROLLBACKS) == []


@pytest.mark.parametrize("text", [b"", b"{}", b'{"format":"hpk-rewind/1","attempt":"x","order":[1,1],"epoch":1}'])
def test_a_damaged_record_is_not_overlooked(store: Store, text: bytes) -> None:
    """It says what must not be taken: without it the branch that was left would be taken again, in silence."""
    name = put_checkpoint(store, 1)
    back(store, name)
    Path(store.url, layout.ROLLBACKS, "000001.json").write_bytes(text)
    with pytest.raises(
        CheckpointError, match="lists the checkpoints that were rewound on purpose, but cannot be trusted"
    ):
        selection.newest_complete(store)


def test_three_steps_back_do_not_bring_back_what_was_left_twice(store: Store) -> None:
    first = [put_checkpoint(store, seq) for seq in (1, 2, 3)]
    back(store, first[0])
    other = put_checkpoint(store, 2, epoch=2)
    back(store, first[1])
    back(store, other)
    assert [entry.checkpoint_id for entry in selection.iter_committed_not_excluded_newest_first(store)] == [
        other,
        first[0],
    ]


@pytest.mark.parametrize("change", [{"epoch": 10**17}, {"order": [1, 0]}, {"attempt": "seq-1"}, {"epoch": True}])
def test_a_record_that_contradicts_itself_is_not_believed(store: Store, change: dict[str, object]) -> None:
    names = [put_checkpoint(store, seq) for seq in (1, 2)]
    back(store, names[0])
    path = Path(store.url, layout.ROLLBACKS, "000001.json")
    body = {key: value for key, value in json.loads(path.read_text()).items() if key != "self"}
    path.write_bytes(manifest.seal_json({**body, **change}))
    with pytest.raises(CheckpointError, match="cannot be trusted: it was not written by hyperpod-kit"):
        selection.newest_complete(store)


@pytest.mark.needs("root")
def test_what_another_user_has_written_is_not_believed(store: Store) -> None:
    """Whoever may make names in a root could send a run back at each start."""
    names = [put_checkpoint(store, seq) for seq in (1, 2)]
    os.chmod(store.url, 0o1777)
    back(store, names[0])
    os.chown(Path(store.url, layout.ROLLBACKS, "000001.json"), 4242, -1)
    with pytest.raises(CheckpointError, match="belongs to uid 4242"):
        selection.newest_complete(store)
