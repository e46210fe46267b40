from __future__ import annotations

import random

import pytest

from hyperpod_kit.checkpoint.agent import control_page
from hyperpod_kit.checkpoint.agent.control_page import Page, SlotState
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
                assert Page(state=old).to(new).state == new
            else:
                with pytest.raises(CheckpointError, match=f"from {old} to {new}"):
                    Page(state=old).to(new)


def test_a_page_that_does_not_fit_is_refused() -> None:
    with pytest.raises(CheckpointError, match="shorten the root"):
        control_page.write(memoryview(bytearray(control_page.PAGE)), 1, Page(root="/x" * 1000))
