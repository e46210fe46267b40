"""The plugin under which everything begins late does delay what it says, and ends with pytest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.wait import until

pytest_plugins = ["pytester"]


def test_children_threads_and_programs_begin_late(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]), prepend=os.pathsep)
    pytester.makeconftest("""
        from tests.support import late_starts
        late_starts._draw = lambda share: 0.3
    """)
    pytester.makepyfile("""
        import os, subprocess, threading, time
        import pytest
        from tests.support import late_starts

        @pytest.fixture(autouse=True)
        def late():
            begun = time.monotonic()
            yield
            assert time.monotonic() - begun >= 0.25

        def test_child():
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)

        def test_thread():
            thread = threading.Thread(target=lambda: None)
            thread.start()
            thread.join()

        def test_program():
            subprocess.run(["cat"], input=b"", check=True)  # it cannot end before it is stopped

        def test_who_continues_them_is_nobodys_child():
            children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
            subprocess.run(["cat"], input=b"", check=True)
            assert children == []
            print("pipe", os.readlink(f"/proc/self/fd/{late_starts._continuer}"))
    """)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "tests.support.late_starts", "-rP")
    result.assert_outcomes(passed=4)
    [pipe] = [line.split()[1] for line in result.outlines if line.startswith("pipe ")]
    until(lambda: not _anybody_has(pipe), what="end of the process that continues others")


def _anybody_has(pipe: str) -> bool:
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(entry) == pipe:
                return True
        except OSError:
            continue
    return False
