"""What was done with root's rights on machines, read from their journals by the admin; and what a user forges there."""

from __future__ import annotations

import json
import shlex
from typing import Any, Dict, List

import pytest
from driver import CONFIG, Driver, wait_until

WORKER = "worker-group/0"
UNIT = "hyperpod-kit-s3-data.service"

FORGE = """
import socket
entry = ["MESSAGE=requeued job 1", "MESSAGE_ID=6f2b1c0d9a8e4f7ab35d0c1e92f4a677", "HYPERPOD_KIT_ACTION=forged",
         "HYPERPOD_KIT_ON=job 1", "HYPERPOD_KIT_WHY=x", "HYPERPOD_KIT_ASKED_BY=x", "_UID=0", "_EXE=/usr/bin/python3",
         "_SYSTEMD_UNIT=hyperpod-kit-sweep.service"]
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sock.sendto("".join(line + "\\n" for line in entry).encode(), "/run/systemd/journal/socket")
"""

BY_A_SETUID_PROGRAM = """
import os, socket
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sock.connect("/run/systemd/journal/socket")
os.dup2(sock.fileno(), 2)
fields = "x=\\nMESSAGE_ID=6f2b1c0d9a8e4f7ab35d0c1e92f4a677\\nHYPERPOD_KIT_ACTION=forged\\nHYPERPOD_KIT_ON=job 1\\n"
os.execvp("{0}", ["{0}", *"{1}".split(), fields])
"""


def actions(cluster: Driver) -> List[Dict[str, Any]]:
    report = cluster.data("diagnose", str(CONFIG), WORKER, "--actions", "--since", "1h")
    (node,) = report["nodes"]
    assert not node["error"], node
    found: List[Dict[str, Any]] = node["actions"]
    return found


@pytest.mark.full
def test_a_repair_is_read_and_no_forgery_is(cluster: Driver) -> None:
    cluster.on(WORKER, f"python3 -c {shlex.quote(FORGE)}", user="trainer")
    for program, words in (("su", "-"), ("sudo", "-n -u"), ("passwd", "-S"), ("newgrp", "-")):
        forge = BY_A_SETUID_PROGRAM.format(program, words)
        cluster.on(WORKER, f"python3 -c {shlex.quote(forge)}", user="trainer", check=False)
    # The daemon is gone for good: only a repair brings the mount back.
    cluster.on(WORKER, f"systemctl stop {UNIT}")
    cluster.on(WORKER, "hyperpod-kit node repair data")
    wait_until("record of the repair", lambda: any(one["on"] == UNIT for one in actions(cluster)), timeout=180)
    found = actions(cluster)
    assert [
        one
        for one in found
        if one["action"] == "started" and one["on"] == UNIT and one["asked_by"] == "repair of mount data"
    ], found
    everything = cluster.on(WORKER, "journalctl --no-pager -o json MESSAGE_ID=6f2b1c0d9a8e4f7ab35d0c1e92f4a677")
    assert '"forged"' in everything, "the forgery did not arrive: this shows nothing"
    assert not [one for one in found if one["action"] == "forged"], found


def test_every_unit_of_ours_does_its_work_with_the_rights_that_it_has(cluster: Driver) -> None:
    for target in ("controller-machine/0", WORKER):
        cluster.on(target, "systemctl start hyperpod-kit-health hyperpod-kit-secrets hyperpod-kit-repair@data")
        listed = cluster.on(target, "systemctl list-units --all --plain --no-legend 'hyperpod-kit-*'")
        failed = [line for line in listed.splitlines() if " failed " in line]
        assert not failed, failed
        # A call that its filter refuses is logged where the kernel has audit, and a Python program says EPERM.
        said = cluster.on(target, "journalctl --no-pager -o cat -u 'hyperpod-kit-*' | grep -i 'not permitted' || true")
        assert not said.strip(), said
        held = cluster.on(target, "systemctl show -P NoNewPrivileges -P SystemCallArchitectures hyperpod-kit-health")
        assert held.split() == ["yes", "native"], held
    assert json.loads(cluster.on(WORKER, "hyperpod-kit node mounts --json"))["mounts"]
