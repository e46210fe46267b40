"""How old a capture is, and that nothing whole goes but aloud: on both sides of every limit, with real slots."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.checkpoint.agent.flush import flush, flush_users, shm_cleanup
from hyperpod_kit.checkpoint.agent.flush.flush_handover import flush_job_until_saved, parse_ended_job
from hyperpod_kit.checkpoint.agent.persist import seal
from hyperpod_kit.checkpoint.agent.shm import capture_age, control_page, lock, shm_slots
from hyperpod_kit.checkpoint.agent.shm.capture_age import MAX_AGE, BootMoment
from hyperpod_kit.checkpoint.agent.shm.control_page import SEALED_AT, CaptureOrigin, Page, SlotState
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError
from hyperpod_lab.torture import day
from tests.faults import capturer
from tests.support.wait import until

DEAD = (2**22 + 1, 1)  # above the kernel's largest pid
NOW = BootMoment("boot.ns", 1_000_000.0)

AGES = st.one_of(
    st.floats(0.0, 2 * MAX_AGE),
    st.sampled_from([0.0, 0.001, MAX_AGE - 1.0, MAX_AGE, MAX_AGE + 0.001, MAX_AGE + 1.0, 400 * MAX_AGE]),
)


def page(word: object = None) -> Page:
    job: Dict[str, Any] = {"slurm_job_id": "7"} if word is None else {"slurm_job_id": "7", SEALED_AT: word}
    return Page(state=SlotState.SEALED, origin=CaptureOrigin(job=job))


@given(age=AGES, limit=st.floats(0.0, 2 * MAX_AGE))
def test_the_age_is_what_the_clock_has_counted_since_the_sealing(age: float, limit: float) -> None:
    sealed = capture_age.dated(page(), NOW._replace(seconds=NOW.seconds - age))
    found = capture_age.seconds_since_sealing(sealed, NOW)
    assert found == pytest.approx(age, abs=0.001)
    assert capture_age.is_known_to_be_expired(sealed, limit, NOW) is (found is not None and found > limit)
    assert sealed.origin.job["slurm_job_id"] == "7"


@given(seconds=st.floats(0.0, 1e9))
def test_what_was_sealed_just_now_is_not_of_a_time_to_come(seconds: float) -> None:
    moment = BootMoment("boot.ns", seconds)
    age = capture_age.seconds_since_sealing(capture_age.dated(page(), moment), moment)
    assert age is not None and 0.0 <= age < 0.002


UNKNOWN: List[object] = [
    None,
    "",
    "boot.ns",
    "boot.ns/",
    "boot.ns/nan",
    "boot.ns/x",
    "boot.ns/" + "1" * 40,
    "boot.ns/١",
    "another.ns/5.0",
    "boot.another/5.0",
    "boot.ns/1000000.001",
    "boot.ns/inf",
    7,
    None.__class__.__name__,
    ["boot.ns", 5],
]


@pytest.mark.parametrize("word", UNKNOWN, ids=str)
def test_what_says_no_moment_of_this_boot_that_has_been_is_of_unknown_age_and_never_too_old(word: object) -> None:
    assert capture_age.seconds_since_sealing(page(word), NOW) is None
    assert not capture_age.is_known_to_be_expired(page(word), -1.0, NOW)
    assert capture_age.youngest_age_if_all_known([page(word), page("boot.ns/1.0")], NOW) is None
    assert capture_age.seconds_since_sealing(capture_age.dated(page(word), NOW), NOW) == 0.0


def test_a_page_that_is_begun_has_room_for_what_comes_at_its_sealing() -> None:
    def written(path: int, state: SlotState, **words: Any) -> None:
        origin = CaptureOrigin(root="/" * path, job=words)
        view = memoryview(bytearray(4096))
        control_page.write(view, 1, page()._replace(state=state, origin=origin))

    longest = 0
    for path in range(2000):
        try:
            written(path, SlotState.WRITING)
            longest = path
        except CheckpointError:
            break
    assert longest > 1000
    moment = BootMoment("01234567.4026531834", 10.0**9)
    sealed = capture_age.dated(page()._replace(origin=CaptureOrigin(root="/" * longest)), moment)
    sealed = sealed._replace(shard=sealed.shard._replace(root="blake2b:" + "0" * 32))
    control_page.write(memoryview(bytearray(4096)), 1, sealed)


def test_a_sealing_is_dated_on_the_page_and_by_the_files_time(capture: Any, shm: Path) -> None:
    slot = capture()
    path = shm / slot.name.file("ctl")
    os.utime(path, (1.0, 1.0))
    before = time.time()
    sealed = seal.seal(slot)
    age = capture_age.seconds_since_sealing(sealed, capture_age.now())
    assert age is not None and 0 <= age < 600 and slot.page == sealed
    assert abs(path.stat().st_mtime - before) < 600
    day.backdate_run(str(shm))
    assert path.stat().st_mtime < before - MAX_AGE and not capture_age.is_known_to_be_expired(
        sealed, 3600.0, capture_age.now()
    )


def test_no_manifest_has_the_moment(capture: Any, shm: Path, tmp_path: Path) -> None:
    seal.seal(capture())
    (outcome,) = flush.flush()
    assert outcome.attempt is not None
    root = open_store(str(tmp_path / "root"))
    assert verify.read_manifest(root, outcome.attempt).job == {"slurm_job_id": "7"}


# --- a flush, on both sides of the limit ------------------------------------------------------------------------------


def lay(folder: str, root: str, word: object, *, job: str = "7", captured: bool = False) -> shm_slots.SlotName:
    """A capture of a dead trainer with that word for its moment; `captured`: not sealed yet."""
    capturer.capture(folder, root, job=job, owner=DEAD)
    (name,) = shm_slots.own_slot_names(folder)
    slot = shm_slots.attach(folder, name)
    if not captured:
        seal.seal(slot)
    now = slot.page
    assert now is not None
    words = {key: value for key, value in now.origin.job.items() if key != SEALED_AT}
    slot.write_page(now._replace(origin=replace(now.origin, job=words if word is None else {**words, SEALED_AT: word})))
    slot.close()
    return name


@given(
    age=st.one_of(st.none(), AGES),
    limit=st.sampled_from([0.0, 3600.0, MAX_AGE]),
    away=st.booleans(),
    ours=st.booleans(),
    captured=st.booleans(),
)
def test_nothing_whole_goes_but_by_a_flush_that_says_so(
    age: Optional[float], limit: float, away: bool, ours: bool, captured: bool
) -> None:
    """`age`: None for one of unknown age. What is young stays for its run; what is old is saved, or given up aloud."""
    with tempfile.TemporaryDirectory() as top:
        folder, root = f"{top}/shm", f"{top}/root"
        os.mkdir(folder)
        word = None if age is None else str(NOW._replace(seconds=NOW.seconds - age))
        lay(folder, root, word, captured=captured)
        day.backdate_run(folder, 400 * MAX_AGE)
        shm_cleanup.remove_empty_segments_of_dead_runs(folder, excluded_run="")
        assert len(os.listdir(folder)) == 2, "only a flush removes what is whole"
        if away:
            os.rename(root, f"{top}/away")
            os.mkdir(root)
        outcomes = flush.flush(folder=folder, job="7" if ours else "8", max_age=limit, clock=lambda: NOW)
        gone = os.listdir(folder) == []
        old = age is not None and capture_age.is_known_to_be_expired(page(word), limit, NOW)
        assert gone is (old or (ours and not away))
        if gone and not away:
            assert selection.newest_valid(root).step == 10 and flush.exit_code(outcomes) == 0
        elif gone:
            (lost,) = outcomes
            assert "step 10 (seq 1)" in lost.lost and lost.lost in lost.note and flush.exit_code(outcomes) == 86
        else:
            assert flush.exit_code(outcomes) == (1 if ours else 0) and not any(one.lost for one in outcomes)


@pytest.mark.parametrize("word", [None, "another.ns/5.0", str(NOW._replace(seconds=NOW.seconds + 1e9))], ids=str)
@pytest.mark.parametrize("job", ["7", "8"])
def test_a_capture_of_unknown_age_counts_from_the_first_flush_that_sees_it(
    shm: Path, tmp_path: Path, word: Optional[str], job: str
) -> None:
    """As the trainer of a build before 0.1.0 leaves one, and as a clock would that has jumped."""
    lay(str(shm), str(tmp_path / "root"), word)
    (tmp_path / "root" / "RUN.json").unlink()  # cannot be saved
    at = [NOW]

    def flushed() -> List[flush.FlushOutcome]:
        return flush.flush(folder=str(shm), job=job, clock=lambda: at[0])

    flushed()
    at[0] = NOW._replace(seconds=NOW.seconds + MAX_AGE - 1.0)
    assert not any(one.lost for one in flushed()) and len(os.listdir(shm)) == 2
    at[0] = NOW._replace(seconds=NOW.seconds + MAX_AGE + 1.0)
    (lost,) = flushed()
    assert lost.lost.startswith("step 10 (seq 1), given up 24.0 hours after") and os.listdir(shm) == []


def test_a_page_without_room_for_a_moment_stays_until_storage_takes_it(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Page:
        raise CheckpointError("the control page needs 2100 of 2020 bytes")

    root = tmp_path / "root"
    lay(str(shm), str(root), None)
    monkeypatch.setattr(shm_slots.Slot, "write_page_dated_now", refused)
    root.rename(tmp_path / "away")
    for _ in range(3):
        (outcome,) = flush.flush(max_age=-1.0)
        assert not outcome.removed
    (tmp_path / "away").rename(root)
    (outcome,) = flush.flush()
    assert outcome.removed and not outcome.lost


def test_what_is_given_up_is_the_exit_code_of_the_unit_and_a_line(
    capture: Any, shm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from hyperpod_kit.checkpoint.commands import cli

    seal.seal(capture(seq=3, step=30))
    (tmp_path / "root").rename(tmp_path / "away")
    assert cli.main(["flush", "--job", "7"]) == 1
    assert "LOST" not in capsys.readouterr().out
    day.backdate_captures(str(shm))
    said: List[str] = []
    ended = parse_ended_job(f"7.0.{os.getuid()}")
    assert flush_job_until_saved(ended, folder=str(shm), max_age=MAX_AGE, announcement_path="", say=said.append) == 86
    (line,) = said
    assert "LOST: step 30 (seq 3), given up 25.0 hours after it was sealed" in line and os.listdir(shm) == []
    seal.seal(capture(seq=4, step=40))
    day.backdate_captures(str(shm))
    (tmp_path / "root").mkdir()
    assert cli.main(["flush", "--all"]) == 86
    assert "LOST: step 40 (seq 4)" in capsys.readouterr().out


def test_what_cannot_be_sealed_beside_what_is_saved_is_lost_aloud(capture: Any, shm: Path) -> None:
    capture(seq=4, step=40)
    slot = capture(seq=5, step=50, slot=1)
    now = slot.page
    assert now is not None
    slot.write_page(now._replace(shard=now.shard._replace(digest="unheard-of")))
    (outcome,) = flush.flush()
    assert outcome.removed and outcome.attempt and outcome.lost == "step 50 (seq 5)"


def test_a_damaged_page_is_no_empty_slot(capture: Any, shm: Path) -> None:
    name = capture().name
    with open(shm / name.file("ctl"), "r+b") as stream:
        stream.write(b"x" * 4096)
    assert shm_cleanup.remove_empty_segments_of_dead_runs(str(shm), excluded_run="") == [] and len(os.listdir(shm)) == 2
    (outcome,) = flush.flush()
    assert outcome.removed and name.file("ctl") in outcome.lost


@pytest.mark.parametrize("written", [0, 300])
def test_a_slot_whose_maker_died_before_it_had_a_page_holds_nothing(capture: Any, shm: Path, written: int) -> None:
    name = capture().name
    with open(shm / name.file("ctl"), "r+b") as stream:
        stream.write(bytes(2048) + (b"HPKSLOT1" * 40)[:written].ljust(2048, b"\0"))
    assert (
        shm_cleanup.remove_empty_segments_of_dead_runs(str(shm), excluded_run="") == [name.run]
        and os.listdir(shm) == []
    )


def test_the_loss_comes_out_of_the_users_child(capture: Any, shm: Path, tmp_path: Path) -> None:
    seal.seal(capture())
    (tmp_path / "root").rename(tmp_path / "away")
    (outcome,) = flush_users.flush_as(os.getuid(), folder=str(shm), job="7", timeout=60.0, max_age=-1.0)
    assert outcome.removed and "step 10 (seq 1)" in outcome.lost


# --- clocks that are set ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-30 * 86400.0, -60.0, 60.0, 30 * 86400.0])
def test_a_holder_that_gets_on_is_seen_to_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    path = str(tmp_path / "a.lock")
    held = lock.try_acquire(path)
    assert held is not None
    wall, counted = [time.time()], [1000.0]
    monkeypatch.setattr(time, "time", lambda: wall[0])
    monkeypatch.setattr(time, "monotonic", lambda: counted[0])
    signs = lock.HolderSigns(path)
    assert signs.seconds_since_sign() < 1.0

    def passes(seconds: float, sign: Optional[float] = None) -> Tuple[float, float]:
        wall[0] += seconds
        counted[0] += seconds
        if sign is not None:
            os.utime(path, (sign, sign))
        return signs.seconds_since_sign(), seconds

    wall[0] += jump
    still, passed = passes(5.0)
    assert still == pytest.approx(passed, abs=1.0), "the jump is no silence"
    assert passes(5.0, sign=wall[0])[0] == 0.0
    assert passes(20.0)[0] == pytest.approx(20.0), "nor does a time to come hide one"
    held.release()
    assert signs.seconds_since_sign() == 0.0, "a lock that was released is the last sign"


# --- an agent of another run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("away", [False, True], ids=["storage there", "storage away"])
def test_an_agent_has_flushed_what_nobody_came_for_and_tells_its_trainer(
    start: Any, capture: Any, shm: Path, tmp_path: Path, away: bool
) -> None:
    old, young = str(tmp_path / "old"), str(tmp_path / "young")
    seal.seal(capture(seq=3, step=30, elsewhere=old))
    day.backdate_captures(str(shm))
    seal.seal(capture(seq=4, step=40, elsewhere=young))
    day.backdate_run(str(shm))
    if away:
        os.rename(old, old + ".away")
    run = start()
    run.settle()
    until(lambda: not _captures_of(shm, old + ".away" if away else old), what="freed memory of the old one")
    assert _captures_of(shm, young)
    if away:
        assert "LOST: step 30 (seq 3)" in run.until("trouble")[-1]["why"]
    else:
        assert selection.newest_valid(old).step == 30
    assert run.close()
    assert _captures_of(shm, young)


def _captures_of(shm: Path, root: str) -> List[shm_slots.SlotName]:
    whose = identity.read_or_infer_identity(root)
    assert whose is not None
    return shm_slots.own_slot_names(str(shm), run=shm_slots.run_hash(whose.run_id))
