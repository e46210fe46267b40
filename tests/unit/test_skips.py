"""What `make test` makes of tests that were skipped or failed, read from a report of pytest's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite import excuses, outcome

TESTS = """
import pytest
@pytest.mark.skipif(True, reason="not installed: slurmctld")
def test_marked(): ...
def test_inside(): pytest.skip("no CUDA device")
@pytest.fixture
def gone(): pytest.skip("no 'curl' (here)")
def test_fixture(gone): ...
@pytest.mark.xfail
def test_expected(): raise OSError
@pytest.mark.parametrize("x", [])
def test_nothing(x): ...
def test_passes(): ...
def test_fails(): assert 3 == 4, "the job said\\nthis"
@pytest.fixture
def broken(): raise OSError("no machine")
def test_setup(broken): ...
"""


def test_every_kind_of_skip_is_found_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_file.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    (tmp_path / "test_other.py").write_text("import pytest\npytest.importorskip('torch_', reason='it\\'s not here')\n")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--junitxml=report.xml",
            "-o",
            "junit_family=xunit1",
            "-n",
            "2",
        ],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        timeout=120,
    )
    report = outcome.parse((tmp_path / "report.xml").read_text())
    reasons = {name.rpartition("::")[2].split("[")[0]: reason for name, reason in report.skipped}
    assert reasons.pop("test_nothing").startswith("got empty parameter set")
    assert reasons.pop("test_file").startswith("could not import 'no_such_module'")
    assert reasons == {
        "test_marked": "not installed: slurmctld",
        "test_inside": "no CUDA device",
        "test_fixture": "no 'curl' (here)",
        "test_other": "it's not here",
    }
    assert report.passed == 2  # the one that is expected to fail did
    failing = dict(report.failures)
    assert set(failing) == {"test_some::test_fails", "test_some::test_setup"}
    assert failing["test_some::test_fails"] == "AssertionError: the job said / this / assert 3 == 4"
    assert failing["test_some::test_setup"] == "OSError: no machine"
    assert excuses.judged(report.skipped, root=True) == 5
    said = capsys.readouterr().out
    assert "FAILED: skipped  test_some::test_marked: not installed: slurmctld" in said
    assert "\nskipped  test_some::test_inside: no CUDA device\n" in said and "./setup.sh system" in said


@pytest.mark.parametrize(
    "reason, root, user",
    [
        ("no CUDA device", True, True),
        ("no CUDA device today", False, False),
        ("needs root to mount", False, True),
        ("needs root and /dev/fuse", True, True),
        ("/dev/fuse: No such file or directory", True, True),
        ("not installed: slurmd", False, True),
        ("there is no curl", False, False),
        ("", False, False),
        ("this store writes front to back", False, False),
        ("collection skipped", False, False),
        ("no machines here: this one lacks squashfs in the kernel; /dev/fuse (modprobe fuse)", True, True),
        ("no machines here: this one lacks the package mmdebstrap; squashfs in the kernel", False, True),
        ("no machines here: this one lacks root (machines, mounts and networks are made)", False, True),
    ],
)
def test_what_a_test_may_be_skipped_for(reason: str, root: bool, user: bool) -> None:
    assert (excuses.is_excused(reason, True), excuses.is_excused(reason, False)) == (root, user)
