"""Which hierarchy a machine boots in; groups themselves are made and killed by the rehearsal tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperpod_rehearsal.machines.cgroups import systemd_requires_cgroup_v2


@pytest.mark.parametrize(
    ("files", "refuses"),
    [
        (["usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-262.so"], True),
        (["usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-257.so"], False),
        (["usr/lib/systemd/libsystemd-shared-247.so"], False),
        (["usr/lib/systemd/libsystemd-shared-259.so", "usr/lib/systemd/libsystemd-shared-x.so"], True),
        ([], False),
    ],
)
def test_an_image_says_itself_whether_its_systemd_refuses_v1(tmp_path: Path, files: list[str], refuses: bool) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert systemd_requires_cgroup_v2(tmp_path) is refuses
