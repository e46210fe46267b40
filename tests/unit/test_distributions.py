"""The other distributions of the repository: of one version with hyperpod-kit, and named where one is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from hyperpod_kit.extras import DISTRIBUTIONS
from hyperpod_kit.version import RELEASE

CHECKOUT = Path(__file__).resolve().parents[2]
LIBRARIES = str(Path(click.__file__).parents[1])
WITHOUT = f"""
import sys
sys.path[:0] = [{str(CHECKOUT)!r}, {LIBRARIES!r}]
"""
"""What a Python without site's directories begins with: the libraries, and of the checkout hyperpod-kit alone."""
PROGRAM = "from hyperpod_kit.cli.main import main\nmain()\n"
COMMANDS = [
    ("hyperpod_rehearsal", "rehearse", "up"),
    ("hyperpod_rehearsal", "rehearse", "--help"),
    ("hyperpod_lab", "checkpoint torture", "--budget 1"),
    ("hyperpod_lab", "checkpoint torture", "--help"),
    ("hyperpod_lab", "data bench", "/nonexistent"),
]
"""Package, a command of it, arguments."""


def without_others(program: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", "-S", "-c", WITHOUT + program, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env={"COLUMNS": "200", **environment})


def project(directory: str) -> str:
    return (CHECKOUT / directory / "pyproject.toml").read_text()


@pytest.mark.parametrize("directory", DISTRIBUTIONS.values())
def test_it_needs_hyperpod_kit_of_its_own_release(directory: str) -> None:
    (requirement,) = [line for line in project(directory).splitlines() if line.startswith("dependencies")]
    assert f"]=={RELEASE}.*" in requirement
    assert 'path = "../hyperpod_kit/version.py"' in project(directory)
    assert (CHECKOUT / directory / "LICENSE").read_bytes() == (CHECKOUT / "LICENSE").read_bytes()


def test_each_one_is_a_member_of_the_workspace() -> None:
    members = ", ".join(f'"{directory}"' for directory in DISTRIBUTIONS.values())
    assert f"members = [{members}]" in (CHECKOUT / "pyproject.toml").read_text()
    for package, directory in DISTRIBUTIONS.items():
        assert (CHECKOUT / directory / package / "py.typed").is_file()


@pytest.mark.parametrize(("package", "command", "arguments"), COMMANDS)
def test_a_command_of_one_that_is_not_installed_says_what_to_install(
    package: str, command: str, arguments: str
) -> None:
    done = without_others(PROGRAM, *command.split(), *arguments.split())
    assert done.returncode == 3, done.stderr
    (message, hint) = done.stderr.splitlines()
    distribution = package.replace("_", "-")
    assert message == f"error: `hyperpod-kit {command}` needs {distribution}, which is not installed"
    assert hint == f"hint: pip install -e {CHECKOUT / DISTRIBUTIONS[package]}"


def test_its_commands_are_listed_all_the_same() -> None:
    done = without_others(PROGRAM, "--help")
    assert done.returncode == 0 and "rehearse" in done.stdout, done.stderr
    done = without_others(PROGRAM, "checkpoint", "--help")
    assert done.returncode == 0 and "torture" in done.stdout, done.stderr


def test_a_key_press_prints_nothing_of_it() -> None:
    words = {"COMP_WORDS": "hyperpod-kit rehearse ", "COMP_CWORD": "2"}
    done = without_others(PROGRAM, _HYPERPOD_KIT_COMPLETE="bash_complete", **words)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_without_a_checkout_the_form_of_the_git_url_is_named(tmp_path: Path) -> None:
    copied = tmp_path / "hyperpod_kit"
    copied.mkdir(parents=True)
    for name in ("__init__", "errors", "exit_codes", "extras"):
        (copied / f"{name}.py").write_bytes((CHECKOUT / f"hyperpod_kit/{name}.py").read_bytes())
    program = f"""
import sys
sys.path.insert(0, {str(copied.parent)!r})
from hyperpod_kit import extras
try:
    extras.require_sibling_distribution_installed("hyperpod_lab.torture.cli", "hyperpod-kit checkpoint torture")
except extras.MissingExtra as err:
    print(err.hint)
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60)
    assert "'hyperpod-lab @ git+ssh://HOST/hyperpod-kit#subdirectory=lab'" in done.stdout, done.stderr
