import os
import subprocess

import pytest

from hyperpod_rehearsal.standins.install import LAUNCHERS, LIBRARY, install_standins


def test_launchers_and_library(tmp_path):
    install_standins(tmp_path)
    install_standins(tmp_path)  # again is no error
    for path, program in LAUNCHERS.items():
        text = (tmp_path / path).read_text()
        assert text.splitlines()[-1] == f'exec /usr/bin/python3 -I -S /{LIBRARY} {program} "$@"'
        assert os.access(tmp_path / path, os.X_OK)
        assert subprocess.run(["sh", "-n", str(tmp_path / path)], timeout=60).returncode == 0
    assert not list((tmp_path / LIBRARY).rglob("install.py"))


def test_a_real_client_is_not_overwritten(tmp_path):
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/mount-s3").write_bytes(b"\x7fELF")
    with pytest.raises(FileExistsError):
        install_standins(tmp_path)
    assert not (tmp_path / LIBRARY).exists()


def test_every_program_starts_without_site_packages(tmp_path):
    install_standins(tmp_path)
    programs = [(program, 0) for program in LAUNCHERS.values() if program != "mount.mount-s3"]
    for program, code in [*programs, ("mount.cifs", 2)]:
        done = subprocess.run(
            ["/usr/bin/python3", "-I", "-S", str(tmp_path / LIBRARY), program, "--version"],
            capture_output=True,
            text=True,
            timeout=20,
        )
        assert done.returncode == code, done.stderr
        assert code or "stand-in" in done.stdout
