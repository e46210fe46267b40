"""The plugin under which the product's calls begin late delays them, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


def test_calls_of_the_product_begin_late(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]), prepend=os.pathsep)
    pytester.makeconftest("""
        from tests.support import late_calls
        waits = []
        late_calls._draw = lambda: 0.3
        late_calls.sleep = waits.append
    """)
    pytester.makepyfile("""
        import os, threading
        from conftest import waits
        from hyperpod_kit.untrusted import by_descriptor

        def test_product(tmp_path):
            waits.clear()
            by_descriptor.write_text(tmp_path / "file", "x")
            thread = threading.Thread(target=by_descriptor.unlink, args=[tmp_path / "file"])
            before = len(waits)
            thread.start()
            thread.join()
            assert before > 0 and len(waits) > before and set(waits) == {0.3}

        def test_others(tmp_path):
            waits.clear()
            (tmp_path / "file").write_text("x")
            os.unlink(tmp_path / "file")
            assert waits == []
    """)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "tests.support.late_calls")
    result.assert_outcomes(passed=2)
