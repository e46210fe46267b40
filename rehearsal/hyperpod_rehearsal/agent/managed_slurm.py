"""Slurm as HyperPod itself starts it, in the modes where no OnCreate script owns it.

Standard library only, Python 3.8: this file runs in a node.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from typing import Sequence

from hyperpod_kit.untrusted import by_descriptor

DROP_IN = "/etc/systemd/system/slurmd.service.d/hyperpod.conf"


def _run_checked_command(argv: Sequence[str], timeout: float = 60.0) -> None:
    subprocess.run(list(argv), check=True, timeout=timeout, stdin=subprocess.DEVNULL)


def _wait_for_controller(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            _run_checked_command(["/opt/slurm/bin/scontrol", "ping"], timeout=10)
            return
        except subprocess.SubprocessError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.25)


def _wait_for_registration(seconds: float) -> None:
    """Wait until the controller reports this node's slurmd as registered. Raises TimeoutExpired."""
    name = socket.gethostname().split(".")[0]
    deadline = time.monotonic() + seconds
    while True:
        shown = subprocess.run(
            ["/opt/slurm/bin/scontrol", "-o", "show", "node", name],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            universal_newlines=True,
            timeout=30,
        ).stdout
        state = re.search(r"\bState=(\S+)", shown)
        if state and "UNKNOWN" not in state.group(1) and "*" not in state.group(1):
            return
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired("scontrol show node", seconds)
        time.sleep(0.25)


def start_slurm_daemons(role: str, controller_ip: str, timeout: float = 120.0) -> None:
    """Start munge and this role's Slurm daemon, enabled for later boots. Raises subprocess.SubprocessError."""
    _run_checked_command(["systemctl", "enable", "--now", "munge"])
    if role == "Controller":
        by_descriptor.make_directories("/var/spool/slurmctld", shared=True)
        _run_checked_command(["systemctl", "enable", "--now", "slurmctld"])
        _wait_for_controller(timeout)
        return
    by_descriptor.make_directories(os.path.dirname(DROP_IN))
    by_descriptor.write_text(
        DROP_IN,
        f"[Service]\nEnvironment=SLURMD_OPTIONS=--conf-server={controller_ip}\nRestart=on-failure\nRestartSec=1\n",
    )
    _run_checked_command(["systemctl", "daemon-reload"])
    _run_checked_command(["systemctl", "enable", "--now", "slurmd"])
    _wait_for_registration(timeout)
