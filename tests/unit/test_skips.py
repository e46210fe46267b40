"""What `make test` makes of tests that were skipped or failed, read from a report of pytest's own."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite import excuses, outcome
from tests.support import capabilities, packages

pytest_plugins = ["pytester"]
CHECKOUT = Path(__file__).parents[2]

TESTS = """
import pytest
@pytest.mark.skipif(True, reason="not installed: slurmctld")
def test_marked(): ...
def test_inside(): pytest.skip("lacks cuda: no CUDA device")
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
            "-p",
            "xdist",
            "-n",
            "1",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.DEVNULL,
        timeout=120,
    )
    report = outcome.parse((tmp_path / "report.xml").read_text())
    reasons = {name.rpartition("::")[2].split("[")[0]: reason for name, reason in report.skipped}
    assert reasons.pop("test_nothing").startswith("got empty parameter set")
    assert reasons.pop("test_file").startswith("could not import 'no_such_module'")
    assert reasons == {
        "test_marked": "not installed: slurmctld",
        "test_inside": "lacks cuda: no CUDA device",
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
    assert "\nskipped  test_some::test_inside: lacks cuda: no CUDA device\n" in said and "./setup.sh system" in said


@pytest.mark.parametrize(
    "reason, root, user",
    [
        ("lacks cuda: no CUDA device", True, True),
        ("lacks root: this is not root", True, True),
        ("lacks slurm (./setup.sh system): not installed: slurmd", False, True),
        ("lacks cuda: no CUDA device; lacks slurm (./setup.sh system): not installed: slurmd", False, True),
        ("lacks cuda: no CUDA device; lacks fuse: /dev/fuse: No such file or directory", True, True),
        ("lacks cuda", False, False),
        ("no CUDA device", False, False),
        ("it fails at times; lacks cuda: no CUDA device", False, False),
        ("lacks cuda: no CUDA device; it fails at times", False, False),
        ("could not import 'torch'", False, False),
        ("", False, False),
        ("collection skipped", False, False),
    ],
)
def test_what_a_test_may_be_skipped_for(reason: str, root: bool, user: bool) -> None:
    assert (excuses.is_excused(reason, True), excuses.is_excused(reason, False)) == (root, user)


def test_every_capability_is_there_or_says_in_one_line_why_not() -> None:
    for name in capabilities.CAPABILITIES:
        lack = capabilities.lacking(name)
        assert "\n" not in lack
        if lack:
            assert excuses.is_excused(capabilities.reason_of([name]), root=False)
    if os.geteuid() != 0:
        assert capabilities.lacking("root") and capabilities.lacking("mounts")


def test_a_marked_test_is_skipped_before_its_fixtures_are_made(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT), prepend=os.pathsep)
    pytester.makeconftest("from tests.support.capabilities import pytest_runtest_setup")
    pytester.makepyfile("""
        import pytest
        from tests.support.capabilities import CAPABILITIES, Capability
        CAPABILITIES.update({"air": Capability(lambda: "a vacuum"), "light": Capability(lambda: "")})
        @pytest.fixture
        def lamp(): raise OSError("it cannot be made without what it needs")
        @pytest.mark.needs("light", "air")
        def test_both(lamp): ...
        @pytest.mark.needs("light")
        def test_light(): ...
        @pytest.mark.needs("no-such-name")
        def test_misspelt(): ...
    """)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rs")
    result.assert_outcomes(passed=1, skipped=1, errors=1)
    result.stdout.fnmatch_lines(["SKIPPED*lacks air: a vacuum"])


ALLOWED = {"tests/support/capabilities.py", "tests/unit/test_skips.py"}
FORBIDDEN = {"skip", "skipif", "flaky"}
"""Attributes of `pytest` and `pytest.mark`. `importorskip` counts as failed where something is not installed."""


def test_nothing_is_skipped_but_for_a_capability_and_nothing_is_run_again() -> None:
    """A plugin that runs failed tests again would hide what this suite is there to find."""
    places = set()
    for path in sorted(path for tests in packages.TESTS for path in tests.rglob("*.py")):
        source = path.read_text()
        if not any(word in source for word in FORBIDDEN):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN:
                owner = ast.unparse(node.value)
                if owner in ("pytest", "pytest.mark"):
                    places.add(str(path.relative_to(CHECKOUT)))
    assert places <= ALLOWED
    assert not [name for name in ("pytest_rerunfailures", "flaky") if importlib.util.find_spec(name)]
    assert "rerunfailures" not in (CHECKOUT / "pyproject.toml").read_text()
