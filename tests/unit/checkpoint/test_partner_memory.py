"""Whose node holds whose copies, and the way of one from memory to memory, with somebody in between."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator

import pytest

from hyperpod_kit.checkpoint.agent.flush import flush, shm_cleanup
from hyperpod_kit.checkpoint.agent.partner import partner_memory, partner_wire
from hyperpod_kit.checkpoint.agent.persist import seal
from hyperpod_kit.checkpoint.agent.persist.persist import Pace
from hyperpod_kit.checkpoint.agent.shm import lock, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import SEALED_AT, Page, SlotState
from hyperpod_kit.checkpoint.agent_client.partner_link import (
    RankNode,
    assign_partners,
    network_switch_of_node,
)
from hyperpod_kit.checkpoint.tiers.partner import plan_fetches
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.system import process
from hyperpod_lab.torture import day


def on(*nodes: str) -> list[RankNode]:
    """Ranks on nodes called switch/node."""
    return [RankNode((name, "/dev/shm"), name.partition("/")[0]) for name in nodes]


def test_partners_are_on_other_nodes_and_below_other_switches_where_there_are_any() -> None:
    assert assign_partners(on("a/1", "a/1")) == [None, None]
    assert assign_partners(on("a/1", "a/1", "a/2", "a/2")) == [2, 3, 0, 1]
    assert assign_partners(on("a/1", "a/2", "a/3")) == [1, 2, 0]
    assert assign_partners(on("a/1", "b/1", "a/2", "b/2")) == [1, 0, 3, 2]
    assert assign_partners(on("a/1", "a/1", "b/1")) == [2, 2, 0]
    names = [f"{switch}/{number}" for number in range(8) for switch in "abc"]
    for rank, other in enumerate(assign_partners(on(*names))):
        assert other is not None and names[other][0] != names[rank][0]
    assert sorted(other for other in assign_partners(on(*names)) if other is not None) == list(range(24))
    assert (
        network_switch_of_node({"SLURM_TOPOLOGY_ADDR": "s0.s4.node7"}) == "s0.s4" and network_switch_of_node({}) == ""
    )


def test_what_is_fetched_is_the_newest_that_all_ranks_can_have() -> None:
    old, new, newer = (1, 1, "a"), (1, 2, "a"), (1, 3, "a")
    assert plan_fetches([[old, new], [old, new]], [[], []]) == {}
    assert plan_fetches([[old, new], []], [[(1, old), (1, new)], []]) == {1: (0, new)}
    assert plan_fetches([[old, newer], []], [[(1, old)], []]) == {1: (0, old)}
    assert plan_fetches([[newer], []], [[], []]) == {}
    assert plan_fetches([[], [old], []], [[], [(0, old)], [(2, old)]]) == {0: (1, old), 2: (2, old)}


@pytest.fixture
def served(capture: Any, shm: Path, tmp_path: Path) -> Iterator[tuple[shm_slots.Slot, Page, Path, Any]]:
    """A sealed capture of rank 1, and a partner's agent on another node."""
    slot = capture(rank=1, world=2, seq=5)
    page = seal.seal(slot)
    node = tmp_path / "partner"
    node.mkdir()
    server = partner_wire.PartnerServer(str(node), slot.name.run, page.origin.run_id, "token", 2, ["127.0.0.1"])
    yield slot, page, node, server


def to(server: Any, token: str = "token", rank: int = 1, port: int = 0) -> partner_wire.RemotePartner:
    return partner_wire.RemotePartner([("127.0.0.1", port or server.port)], token, rank, Pace())


def copies(node: Path, run: str) -> list[Page]:
    return [undated(page) for _, page in partner_memory.sealed_copies(partner_memory.copies_directory(str(node)), run)]


def undated(page: Page | None) -> Page:
    """Without its moment: a copy has one of its own."""
    assert page is not None and SEALED_AT in page.origin.job
    job = {word: value for word, value in page.origin.job.items() if word != SEALED_AT}
    return page._replace(origin=replace(page.origin, job=job))


def test_a_capture_goes_there_and_comes_back_as_it_was(served: Any, shm: Path, tmp_path: Path) -> None:
    slot, page, node, server = served
    to(server).send_sealed_copy(slot, page)
    to(server).send_sealed_copy(slot, page)  # the next one takes its place
    assert copies(node, slot.name.run) == [undated(page)]
    back = tmp_path / "back"
    back.mkdir()

    def make(page: Page) -> shm_slots.Slot:
        made = shm_slots.create(str(back), slot.name, page.shard.size)
        made.write_page(page._replace(state=SlotState.WRITING))
        return made

    partner_wire.fetch_capture([("127.0.0.1", server.port)], "token", page.origin.run_id, 1, page.key, make)
    again = shm_slots.attach(str(back), slot.name)
    assert undated(again.page) == undated(page) and bytes(again.image) == bytes(slot.image)
    assert again.read_extra(page.shard.extra_size) == slot.read_extra(page.shard.extra_size)
    with pytest.raises(CheckpointError, match="not here any more"):
        partner_wire.fetch_capture([("127.0.0.1", server.port)], "token", page.origin.run_id, 0, page.key, make)


def test_copies_are_no_captures_of_the_node_that_has_them_and_go_with_the_run(served: Any, shm: Path) -> None:
    slot, page, node, server = served
    to(server).send_sealed_copy(slot, page)
    assert shm_slots.own_slot_names(str(node)) == []
    partner_memory.remove_copies(str(node), slot.name.run, keep=lambda found: found.key == page.key)
    assert copies(node, slot.name.run) == [undated(page)]
    partner_memory.remove_copies(str(node), slot.name.run)
    assert copies(node, slot.name.run) == []


def test_a_copy_waits_for_storage_and_is_given_up_aloud(
    served: Any, shm: Path, capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, page, node, server = served
    to(server).send_sealed_copy(slot, page)
    monkeypatch.setenv("HPK_SHM_DIR", str(node))
    (stays,) = flush.flush(job="7")
    assert not stays.removed and stays.again and "step 10 (seq 5), not on storage yet" in stays.note
    assert (
        flush.flush(job="8") == [] and shm_cleanup.remove_empty_segments_of_dead_runs(str(node), excluded_run="") == []
    )
    assert len(copies(node, slot.name.run)) == 1
    (gone,) = flush.flush(job="8", max_age=-1.0)
    assert gone.removed and "rank 1 captured on another node, step 10 (seq 5)" in gone.lost
    assert gone.note == f"LOST: {gone.lost}" and flush.exit_code([gone]) == 86
    assert copies(node, slot.name.run) == []


def test_a_copy_outlives_the_capture_whose_node_may_save_it_yet(served: Any, capture: Any, tmp_path: Path) -> None:
    """A day later, and this node's flush comes first."""
    slot, page, node, server = served
    to(server).send_sealed_copy(slot, page)
    day.backdate_captures(str(node))
    (stays,) = flush.flush(folder=str(node))
    assert not stays.removed and not stays.lost
    capture(rank=0, world=2, seq=5)
    (saved,) = flush.flush()
    assert saved.attempt and flush.flush(folder=str(node), job="none") == []
    assert copies(node, slot.name.run) == []


def test_a_copy_goes_once_storage_has_the_capture(
    served: Any, capture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, page, node, server = served
    to(server).send_sealed_copy(slot, page)
    capture(rank=0, world=2, seq=5)
    (saved,) = flush.flush(job="7")
    assert saved.attempt, "both ranks' own captures lie in one memory here"
    monkeypatch.setenv("HPK_SHM_DIR", str(node))
    assert flush.flush(job="7") == [] and copies(node, slot.name.run) == []


def test_copies_of_a_living_run_are_its_agents_however_old_they_are(served: Any, shm: Path) -> None:
    slot, page, node, server = served
    to(server).send_sealed_copy(slot, page)
    agent = lock.acquire_ending_stale_agent(
        str(node / shm_slots.lock_file_name(slot.name.uid, slot.name.run, 0)), process.this_process()
    )
    assert (
        flush.flush(folder=str(node), max_age=-1.0) == []
        and shm_cleanup.remove_empty_segments_of_dead_runs(str(node), excluded_run="") == []
    )
    assert copies(node, slot.name.run) == [undated(page)]
    agent.release()
    assert [one.removed for one in flush.flush(folder=str(node), max_age=-1.0)] == [True]


@pytest.mark.parametrize("how", ["half copied", "torn"])
def test_a_half_copy_goes_with_the_next_agent_of_any_run(served: Any, shm: Path, how: str) -> None:
    """A torn one: the agent died while it made the slot."""
    slot, page, node, _ = served
    if how == "torn":
        (node / "partners").mkdir()
        for suffix in ("img", "ctl"):
            (node / "partners" / slot.name.file(suffix)).touch()
    else:
        partner_memory.reserve_slot(str(node), slot.name.run, page, 0, page.shard.extra_size).close()
    assert len(partner_memory.copy_slot_names(partner_memory.copies_directory(str(node)))) == 1
    shm_cleanup.remove_empty_segments_of_dead_runs(str(node), excluded_run=slot.name.run)
    assert len(partner_memory.copy_slot_names(partner_memory.copies_directory(str(node)))) == 1
    shm_cleanup.remove_empty_segments_of_dead_runs(str(node), excluded_run="")
    assert partner_memory.copy_slot_names(partner_memory.copies_directory(str(node))) == []


def test_who_has_not_the_token_or_is_another_rank_gives_nothing_and_gets_nothing(served: Any) -> None:
    slot, page, node, server = served
    with pytest.raises(ConnectionError):
        to(server, token="guessed").send_sealed_copy(slot, page)
    with pytest.raises(CheckpointError, match="no sealed capture of that rank"):
        to(server, rank=0).send_sealed_copy(slot, page)
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(b"\0\xff" * 1000 + b"\n")
    to(server).send_sealed_copy(slot, page)
    assert copies(node, slot.name.run) == [undated(page)]


@pytest.mark.parametrize("what", ["flipped", "cut off"])
def test_what_was_changed_on_its_way_is_no_copy(served: Any, what: str) -> None:
    """Somebody between the two who passes all on, but for one byte of the image, or but for its end."""
    slot, page, node, server = served
    with socket.create_server(("127.0.0.1", 0)) as between:

        def pass_on(source: socket.socket, target: socket.socket, spoil_at: int) -> None:
            seen = 0
            with contextlib.suppress(OSError):  # either end may have gone
                while data := bytearray(source.recv(65536)):
                    if spoil_at and seen <= spoil_at < seen + len(data):
                        if what == "cut off":
                            break
                        data[spoil_at - seen] ^= 1
                    seen += len(data)
                    target.sendall(data)
            for one in (source, target):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

        def serve() -> None:
            near, _ = between.accept()
            far = socket.create_connection(("127.0.0.1", server.port))
            threading.Thread(target=pass_on, args=(far, near, 0), daemon=True).start()
            pass_on(near, far, 12000)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises((CheckpointError, OSError)):
            to(server, port=between.getsockname()[1]).send_sealed_copy(slot, page)
    assert copies(node, slot.name.run) == []
