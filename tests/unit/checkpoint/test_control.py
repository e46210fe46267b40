from __future__ import annotations

import random
import struct

import pytest

from hyperpod_kit.checkpoint.agent.shm import control_page
from hyperpod_kit.checkpoint.agent.shm.control_page import CaptureOrigin, Page, ShardFacts, SlotState
from hyperpod_kit.errors import CheckpointError


def test_a_write_that_stops_anywhere_leaves_the_old_page() -> None:
    page = memoryview(bytearray(control_page.PAGE))
    control_page.write(page, 1, Page(seq=1))
    control_page.write(page, 2, Page(seq=2))
    before = bytes(page)
    after = memoryview(bytearray(before))
    control_page.write(after, 3, Page(seq=3, state=SlotState.WRITING))
    changed = [at for at in range(control_page.PAGE) if before[at] != after[at]]
    for stop in changed:
        torn = bytearray(before)
        torn[:stop] = after[:stop]
        found = control_page.read(memoryview(torn))
        assert found is not None and found[1].seq in (2, 3)
        assert found[1] == (Page(seq=2) if found[0] == 2 else Page(seq=3, state=SlotState.WRITING))


def test_a_flipped_byte_is_never_read_as_a_page() -> None:
    page = memoryview(bytearray(control_page.PAGE))
    control_page.write(page, 1, Page(seq=41, state=SlotState.SEALED))
    control_page.write(page, 2, Page(seq=42, state=SlotState.SEALED))
    dice = random.Random(5)
    for _ in range(400):
        damaged = bytearray(page)
        damaged[dice.randrange(control_page.PAGE)] ^= 1 << dice.randrange(8)
        found = control_page.read(memoryview(damaged))
        assert found in ((2, Page(seq=42, state=SlotState.SEALED)), (1, Page(seq=41, state=SlotState.SEALED)))
    assert control_page.read(memoryview(bytearray(control_page.PAGE))) is None


def test_only_the_legal_transitions_exist() -> None:
    states = (SlotState.FREE, SlotState.WRITING, SlotState.CAPTURED, SlotState.SEALED)
    legal = {
        (SlotState.FREE, SlotState.WRITING),
        (SlotState.WRITING, SlotState.CAPTURED),
        (SlotState.WRITING, SlotState.FREE),
        (SlotState.CAPTURED, SlotState.SEALED),
        (SlotState.CAPTURED, SlotState.FREE),
        (SlotState.SEALED, SlotState.FREE),
        (SlotState.SEALED, SlotState.SEALED),
    }
    for old in states:
        for new in states:
            if (old, new) in legal:
                assert Page(state=old).transition(new).state == new
            else:
                with pytest.raises(CheckpointError, match=f"from {old} to {new}"):
                    Page(state=old).transition(new)


def test_a_page_that_does_not_fit_is_refused() -> None:
    with pytest.raises(CheckpointError, match="shorten the root"):
        control_page.write(memoryview(bytearray(control_page.PAGE)), 1, Page(origin=CaptureOrigin(root="/x" * 1000)))


def test_a_page_is_written_as_the_first_release_wrote_it() -> None:
    """Byte for byte: a job goes on while its node is updated, and the older version may be the one that reads."""
    page = Page(
        SlotState.CAPTURED,
        CaptureOrigin(1, 2, "abc123", "r", "id", "/fsx/r", {"slurm_job_id": "7"}, (12, 34)),
        3,
        4,
        50,
        ShardFacts("xxh3", 4096, 8192, "l", "p", 5, 6, 2, "blake2b:e", "xxh3:s"),
        True,
    )
    text = (
        b'{"state":"CAPTURED","rank":1,"world":2,"epoch":3,"seq":4,"step":50,"incarnation":"abc123","run":"r",'
        b'"run_id":"id","root":"/fsx/r","job":{"slurm_job_id":"7"},"owner":[12,34],"digest":"xxh3","chunk":4096,'
        b'"size":8192,"layout":"l","plan":"p","tensors":5,"plan_tensors":6,"extra_size":2,"extra_root":"blake2b:e",'
        b'"shard_root":"xxh3:s","durable":true}'
    )
    written = memoryview(bytearray(control_page.PAGE))
    control_page.write(written, 1, page)
    assert bytes(written[2048:]).startswith(b"HPKSLOT1" + struct.pack("<QI", 1, len(text)) + text)
    assert control_page.read(written) == (1, page)


@pytest.mark.parametrize(
    "change",
    [
        {"state": "GONE"},
        {"state": []},
        {"seq": -1},
        {"seq": True},
        {"owner": [1]},
        {"run": "\ud800"},
        {"colour": "red"},
    ],
)
def test_what_is_no_page_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        control_page.parse_page({**Page().to_json(), **change})
