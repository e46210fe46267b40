"""Mappings of slots: no descriptor stays open, and the memory goes with the last that looks into it."""

import gc
import os
from pathlib import Path

from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.repository.read import mapping


def _mapped(name: str) -> bool:
    return name in Path("/proc/self/maps").read_text()


def _open(name: str) -> bool:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return any(name in os.readlink(link) for link in links if os.path.islink(link))


def test_a_slot_holds_no_descriptor_and_is_unmapped_when_closed(tmp_path: Path) -> None:
    name = shm_slots.SlotName(os.getuid(), "0" * 12, 0, 0)
    slot = shm_slots.create(str(tmp_path), name, 8192)
    slot.prefault()
    slot.image[:3] = b"abc"
    assert (tmp_path / name.file("img")).read_bytes()[:3] == b"abc"
    assert _mapped(name.file("img")) and not _open(name.file("img")) and not _open(name.file("ctl"))

    slot.close()
    gc.collect()
    assert not _mapped(name.file("img")) and not _mapped(name.file("ctl"))


def test_what_looks_into_a_mapping_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "looked-into"
    path.write_bytes(b"x" * 4096)
    with open(path, "r+b") as file:
        array = mapping.map_file_shared_writable(file.fileno(), 4096)
    view = mapping.view_of(array)
    part = view[10:12]
    del array
    view.release()
    gc.collect()
    assert bytes(part) == b"xx" and _mapped(path.name)

    part.release()
    gc.collect()
    assert not _mapped(path.name)
