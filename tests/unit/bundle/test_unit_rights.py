"""What each rendered unit could do beyond its work, as systemd counts it: a figure each, and why if it is above 4."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parent / "golden/everything/units"
BAR = 4.0

HELPER = (
    "It runs the client's own mount helper, whose proxy stays behind: the host's mounts, no bound on memory, "
    "most of root's rights"
)
ALLOWED = {
    "drain": (2.5, ""),
    "secrets": (2.7, ""),
    "health": (4.2, "It becomes each user in turn, to ask what that user can write"),
    "slurm-state": (3.6, ""),
    "repair@": (BAR, ""),
    "sweep": (BAR, ""),
    "memory": (4.2, "It becomes each user in turn and writes wherever that user's checkpoints are"),
    "flush@": (4.2, "It becomes the user whose captures it saves and writes wherever that user's checkpoints are"),
    "upkeep": (4.3, "It starts logrotate, mariadb-dump and sacctmgr, and writes to logs that belong to others"),
    "devices": (BAR, ""),
    "slurm-guard": (4.4, "It becomes an ordinary user to load Slurm's plugins, and writes where slurm.conf lies"),
    "s3": (4.6, "The daemon mounts for the host, and talks to S3"),
    "mount": (6.5, HELPER),
}
"""Unit, without its prefix and its mount's name -> exposure that it may have, and why it may be above the bar."""

SINCE = {
    "NoNewPrivileges": 187,
    "RestrictNamespaces": 233,
    "RestrictRealtime": 231,
    "LockPersonality": 235,
    "SystemCallArchitectures": 209,
    "SystemCallErrorNumber": 209,
    "SystemCallFilter": 187,
    "RestrictSUIDSGID": 242,
    "ProtectHostname": 242,
    "ProtectClock": 245,
    "MemoryDenyWriteExecute": 231,
    "DevicePolicy": 208,
    "DeviceAllow": 208,
    "RestrictAddressFamilies": 211,
    "CapabilityBoundingSet": 21,
    "IPAddressDeny": 235,
    "IPAddressAllow": 235,
    "MemoryMax": 231,
    "TasksMax": 227,
    "ProtectSystem": 214,
    "PrivateTmp": 8,
    "PrivateDevices": 209,
    "ProtectKernelTunables": 232,
    "ProtectKernelModules": 232,
    "ProtectKernelLogs": 244,
    "ProtectControlGroups": 232,
    "ProtectProc": 247,
    "OOMScoreAdjust": 21,
    "User": 1,
    "Group": 1,
    "UMask": 1,
    "ProtectHome": 214,
    "RemoveIPC": 232,
    "PrivateUsers": 232,
    "PrivateMounts": 239,
    "KeyringMode": 235,
    "SupplementaryGroups": 1,
    "Environment": 1,
    "Nice": 1,
    "LimitNOFILE": 1,
    "Restart": 1,
    "RestartSec": 1,
    "Type": 1,
    "ExecStart": 1,
    "ExecStartPre": 1,
    "ExecStartPost": 1,
    "ExecStopPost": 1,
    "SuccessExitStatus": 1,
    "TimeoutStartSec": 188,
    "TimeoutStopSec": 188,
    "LogLevelMax": 236,
    "SyslogLevel": 1,
    "SyslogIdentifier": 1,
    "KillMode": 187,
    "RemainAfterExit": 1,
    "ReadOnlyPaths": 231,
    "ReadWritePaths": 231,
    "InaccessiblePaths": 231,
    "ProcSubset": 247,
    "RuntimeDirectory": 211,
    "StateDirectory": 235,
    "AmbientCapabilities": 229,
}
"""Key -> the systemd that knew it first (systemd.exec(5), systemd.service(5), systemd.resource-control(5))."""

OLDEST = 249
"""Ubuntu 22.04's."""

MOUNTS_APART = (
    "ProtectSystem",
    "ProtectHome",
    "PrivateTmp",
    "PrivateDevices",
    "PrivateMounts",
    "ProtectKernelTunables",
    "ProtectKernelModules",
    "ProtectKernelLogs",
    "ProtectControlGroups",
    "ProtectProc",
    "ProcSubset",
    "ReadOnlyPaths",
    "ReadWritePaths",
    "InaccessiblePaths",
    "RuntimeDirectory",
    "StateDirectory",
)
"""Keys that give a unit a mount namespace, in one systemd or another."""


def kind(unit: Path) -> str:
    name = unit.stem[len("hyperpod-kit-") :]
    return next(
        known for known in sorted(ALLOWED, key=len, reverse=True) if name == known or name.startswith(f"{known}-")
    )


def keys(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    section = unit.read_text().partition("[Service]")[2].partition("\n[")[0]
    for line in section.splitlines():
        if "=" in line and not line.startswith("#"):
            found.setdefault(line.partition("=")[0], []).append(line.partition("=")[2])
    return found


services = pytest.mark.parametrize(
    "unit", [pytest.param(path, id=path.stem[len("hyperpod-kit-") :]) for path in sorted(UNITS.glob("*.service"))]
)


@pytest.mark.needs("systemd-analyze")
@services
def test_exposure(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        timeout=120,
        capture_output=True,
        text=True,
    )
    measured = re.search(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    assert measured, done.stdout + done.stderr
    most, reason = ALLOWED[kind(unit)]
    assert float(measured[1]) <= most
    assert most <= BAR or reason


@services
def test_what_is_above_the_bar_says_in_the_unit_what_its_work_needs(unit: Path) -> None:
    if ALLOWED[kind(unit)][0] > BAR:
        assert re.search(r"^# .*no ProtectSystem, PrivateTmp", unit.read_text(), re.MULTILINE)


@services
def test_the_oldest_systemd_knows_every_key(unit: Path) -> None:
    assert {key: SINCE.get(key) for key in keys(unit) if SINCE.get(key, 10**6) > OLDEST} == {}


@services
def test_what_works_on_mounts_has_the_host_s(unit: Path) -> None:
    """In a mount namespace of its own a unit holds dead mounts, and what it mounts is nobody else's."""
    if kind(unit) in ("drain", "secrets", "sweep"):
        return
    assert not set(keys(unit)) & set(MOUNTS_APART)


@services
def test_nothing_sets_up_its_namespace_by_walking_over_every_mount(unit: Path) -> None:
    """A hung one would hold up what tells of it."""
    found = keys(unit)
    if kind(unit) == "sweep":
        return
    assert "strict" not in found.get("ProtectSystem", []) and "ProtectHome" not in found


@services
def test_no_unit_passes_on_what_can_be_configured_in_a_user_s_environment(unit: Path) -> None:
    """Points of failure (`HPK_FAILPOINT` and its like) are read from the environment: a unit's is systemd's own."""
    found = keys(unit)
    assert "PassEnvironment" not in found and "EnvironmentFile" not in found
