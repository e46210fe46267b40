"""The frame: help, typing mistakes, exit codes, speed, and the two groups that pass everything on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.cli.table import SECTIONS, cli
from hyperpod_kit.errors import GaveUp, HyperpodKitError

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Outcome

    Hk = Callable[..., Outcome]

ROOT = Path(__file__).parents[3]


def test_help_lists_every_command_by_what_it_is_for(hk: Hk) -> None:
    shown = hk("--help")
    assert shown.code == 0
    for title, section in SECTIONS.items():
        assert f"{title}:" in shown.out
        for name, entry in section.items():
            assert f"  {name} " in shown.out and entry.help in shown.out


@pytest.mark.parametrize("name", [name for section in list(SECTIONS.values())[:2] for name in section])
def test_every_command_of_ours_can_be_imported_and_explains_itself(hk: Hk, name: str) -> None:
    shown = hk(name, "--help")
    assert shown.code == 0 and shown.out.startswith(f"Usage: hyperpod-kit {name}")


def test_typing_mistakes(hk: Hk) -> None:
    wrong = hk("validat")
    assert (
        wrong.code == 2
        and "No such command 'validat'. (Did you mean one of: 'validate', 'validate-mounts'?)" in wrong.err
    )
    assert hk("upload", "--nope").code == 2
    assert hk("init", "--workers", "-1").code == 2
    there = hk("node", "mounts")
    assert there.code == 3 and there.err.startswith(
        "error: `hyperpod-kit node` runs on the nodes of a cluster, not on this"
    )
    assert "hint: run it there with hyperpod-kit connect NODE" in there.err and "Usage" not in there.err


def test_an_environment_without_click_gets_a_sentence() -> None:
    """As after `pip install --no-deps`, or from a lock file without it."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from hyperpod_kit.cli.main import main; main(['--help'])"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: the Python environment /") and "has no click, which" in done.stderr
    assert "hint: add click and rich to its requirements" in done.stderr


def test_start_up_imports_nothing_heavy(tmp_path: Path) -> None:
    script = tmp_path / "start.py"
    script.write_text("from hyperpod_kit.cli.main import main\nmain(['--help'])\n")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    heavy = {
        "boto3",
        "botocore",
        "jinja2",
        "paramiko",
        "rich",
        "yaml",
        "torch",
        "numpy",
        "concurrent.futures",
        "asyncio",
        "ssl",
    }
    assert not imported & heavy, imported & heavy
    ours = {name for name in imported if name.startswith("hyperpod_kit.")}
    frame = {"cli", "cli.main", "cli.table", "cli.terminal", "cli.terminal.command_ending", "cli.terminal.lazy"}
    frame |= {"ending", "errors", "exit_codes", "extras", "version"}
    assert ours == {f"hyperpod_kit.{name}" for name in frame}


def fake(monkeypatch: pytest.MonkeyPatch, name: str, main: Callable[[list[str]], Any]) -> None:
    monkeypatch.setattr(f"{name}.main", main)


@pytest.mark.parametrize(
    ("group", "module"), [("job", "hyperpod_kit.job.cli"), ("checkpoint", "hyperpod_kit.checkpoint.cli")]
)
def test_every_word_is_passed_on(monkeypatch: pytest.MonkeyPatch, group: str, module: str) -> None:
    seen: list[list[str]] = []
    fake(monkeypatch, module, lambda argv: (seen.append(argv), 75)[1])
    words = ["run", "--stall", "5", "-x", "--json", "--", "python", "train.py", "--help", "--", "-v"]
    assert run_command_line([group, *words]) == 75
    assert seen == [words]


def test_errors_become_words_and_exit_codes(monkeypatch: pytest.MonkeyPatch, hk: Hk) -> None:
    def fail(error: BaseException) -> Callable[[list[str]], int]:
        def main(argv: list[str]) -> int:
            raise error

        return main

    fake(monkeypatch, "hyperpod_kit.job.cli", fail(GaveUp("no budget left", hint="scontrol release 7")))
    gave_up = hk("job", "run")
    assert (gave_up.code, gave_up.err) == (86, "error: no budget left\nhint: scontrol release 7\n")
    fake(monkeypatch, "hyperpod_kit.job.cli", fail(HyperpodKitError("plain")))
    assert hk("job").err == "error: plain\n"
    assert "Traceback" in hk("--debug", "job").err
    fake(monkeypatch, "hyperpod_kit.job.cli", fail(ModuleNotFoundError("x", name="boto3.session")))
    assert "hint: pip install 'boto3>=1.40' " in hk("job").err
    fake(monkeypatch, "hyperpod_kit.job.cli", fail(KeyboardInterrupt()))
    assert hk("job").code == 130


def test_the_group_is_a_click_group_for_completion() -> None:
    assert set(cli.list_commands(None)) == {name for section in SECTIONS.values() for name in section}  # type: ignore[arg-type]


def test_no_far_word_is_suggested_and_a_node_s_command_is_named_as_that(hk: Hk) -> None:
    far = hk("frob")
    assert far.code == 2 and "No such command 'frob'." in far.err and "Did you mean" not in far.err
    on_nodes = hk("node", "mounts")
    assert on_nodes.code == 3 and "`hyperpod-kit node` runs on the nodes of a cluster" in on_nodes.err
    assert "hint: run it there with hyperpod-kit connect NODE" in on_nodes.err
