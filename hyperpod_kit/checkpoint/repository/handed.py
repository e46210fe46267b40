"""A commit without agents: each node hands in its shards, and whoever finds that all are there commits.

For `flush` after the end of a job whose last captures are spread over nodes that cannot talk to each other any more.
Beside its shards a node leaves a report per rank; the attempt's name follows from the capture, so all nodes use one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Dict, Mapping, Tuple

from hyperpod_kit import __version__
from hyperpod_kit.errors import CheckpointError

from . import assemble, commit, layout, manifest, persist, seal
from .arena import Slot
from .control import Page

Held = Mapping[int, Tuple[Slot, Page]]
"""Rank -> its sealed slot and page; all of one capture."""


def attempt_of(page: Page) -> str:
    """The attempt that all nodes hand this capture in to; never the one that the agents were writing."""
    nonce = hashlib.blake2b(f"flush {page.incarnation}".encode(), digest_size=3).hexdigest()
    return str(layout.AttemptName(page.seq, page.step, page.epoch, nonce))


def hand_in(root: str, held: Held) -> bool:
    """Write this node's shards and their reports; True when the capture is committed with them.

    A node that comes later may still commit it, so the memory is not needed any more in either case. Raises
    CheckpointError, OSError.
    """
    page = next(iter(held.values()))[1]
    attempt = attempt_of(page)
    folder = commit.make_attempt(root, attempt)
    for rank, (slot, mine) in sorted(held.items()):
        path = os.path.join(folder, layout.report_file(rank))
        if os.path.exists(path):
            continue
        record = persist.write_shard(seal.Sealing(slot), folder)
        body = assemble.Report(mine, record, slot.extra(mine.extra_size).decode()).to_json()
        commit.write_once(path, manifest.seal_json(body))
    return _complete(root, attempt, page.world)


def _complete(root: str, attempt: str, world: int) -> bool:
    """Commit when every rank has handed in. Two nodes may do this at once: they write the same, and one is first."""
    folder = os.path.join(root, attempt)
    reports: Dict[int, assemble.Report] = {}
    for rank in range(world):
        name = layout.report_file(rank)
        try:
            with open(os.path.join(folder, name), "rb") as file:
                reports[rank] = assemble.Report.from_json(manifest.open_json(file.read(), name))
        except FileNotFoundError:
            return False
        except (TypeError, KeyError) as err:
            raise CheckpointError(f"{name} lacks a field: {err}") from None
    made, extra = assemble.assemble(reports, {"hyperpod_kit": __version__, "writer": "flush"})
    with contextlib.suppress(FileExistsError):
        commit.write_once(os.path.join(folder, layout.EXTRA_FILE), extra)
    with open(os.path.join(folder, layout.EXTRA_FILE), "rb") as file:
        if file.read() != extra:
            raise CheckpointError(f"{layout.EXTRA_FILE} of {attempt} is not what the ranks handed in")
    commit.sync_directory(root)
    with contextlib.suppress(FileExistsError):
        commit.write_once(os.path.join(folder, layout.MANIFEST_FILE), made.encode())
    return True
