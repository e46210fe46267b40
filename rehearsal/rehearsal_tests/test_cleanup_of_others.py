"""`rehearse down --all` leaves a rehearsal alone that runs and whose state lies elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from hyperpod_rehearsal import cleanup
from hyperpod_rehearsal.machines import host
from hyperpod_rehearsal.records.layout import Layout
from tests.support.wait import until

GONE = "beef"


def test_a_running_rehearsal_of_another_state_directory_is_no_stray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = Layout(tmp_path / "elsewhere")
    removed: List[str] = []

    def remove(layout: Layout) -> List[str]:
        removed.append(layout.id)
        return []

    monkeypatch.setattr(host, "require_root", lambda what: None)
    monkeypatch.setattr(cleanup, "existing_rehearsals", lambda: [])
    monkeypatch.setattr(cleanup, "rehearsal_ids_in_host_resources", lambda: {elsewhere.id, GONE})
    monkeypatch.setattr(cleanup, "remove_host_resources_and_list_remaining", remove)
    words = [sys.executable, "-c", "input()", "-m", cleanup.DAEMON, "--state", str(elsewhere.root)]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as daemon:
        until(lambda: elsewhere.id in cleanup.ids_of_running_rehearsals(), what="the command line of the daemon")
        names = cleanup.stop_and_remove_all_returning_names()
        daemon.communicate(b"\n")
    assert removed == [GONE]
    assert names == [f"(stray {GONE})"]
