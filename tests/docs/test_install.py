"""The install lines of the documents: none takes the package from an index that is not ours, and each works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import pytest

from docs_build.blocks import blocks_of
from hyperpod_kit.bundle import render, sources
from hyperpod_kit.config.load import load
from hyperpod_kit.version import RELEASE
from tests.docs.test_releases import files

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/how-to/install.md"
EXAMPLE = ROOT / sources.EXAMPLE
URL = "/srv/git/hyperpod-kit"
LIBRARY = "/opt/hyperpod-kit/current/lib"

INSTALLER = r"\b(?:pip3?|pipx|uv pip|uv tool|uv|conda|mamba) +(?:install|add)\b"
# The name as a requirement: not a part of a path or of a file's name, and no address behind it.
BARE = re.compile(
    INSTALLER + r"[^#;&|\n]*?(?<![\w/.-])hyperpod[-_](?:kit|rehearsal|lab)(?![\w/-]|\.\w)(?:\[[\w,-]*\])?(?!\s*@)"
)


def bare_names(text: str) -> Iterator[str]:
    """Each place that has an installer look the package's name up on an index."""
    for match in BARE.finditer(text):
        if not re.match(r"(?:\[[\w,-]*\])?\s*@", text[match.end() :]):
            yield match.group()[-120:]


@pytest.mark.needs("git-checkout")
def test_nothing_says_to_take_the_package_from_an_index() -> None:
    own = Path(__file__).relative_to(ROOT).as_posix()
    found = {name: list(bare_names(text)) for name, text in files() if name != own}
    assert {name: places for name, places in found.items() if places} == {}


@pytest.mark.parametrize(
    ("line", "bare"),
    [
        ("pip install hyperpod-kit", True),
        ("pip install 'hyperpod-kit[admin]'", True),
        ('"pip install \\"hyperpod-kit[torch]\\""', True),
        ("pip install -U hyperpod_kit==0.1.0", True),
        ("uv pip install hyperpod-kit", True),
        ("pip install hyperpod-rehearsal", True),
        ("pip install 'hyperpod-lab @ git+ssh://HOST/hyperpod-kit#subdirectory=lab'", False),
        ("pip install '.[admin]'  # then hyperpod-kit init", False),
        ("pip install 'hyperpod-kit[admin] @ git+file:///srv/git/hyperpod-kit'", False),
        ("pip install hyperpod-kit@git+ssh://host/hyperpod-kit", False),
        ("pip install /opt/hyperpod-kit/current/lib/hyperpod_kit-*.whl", False),
        ('pip install "$(ls dist/hyperpod_kit-*.whl)[admin]"', False),
        ("pip install 'boto3>=1.40' && hyperpod-kit upload", False),
    ],
)
def test_what_is_such_a_line(line: str, bare: bool) -> None:
    assert bool(list(bare_names(line))) is bare


def commands() -> List[str]:
    """The install lines of the page, without their comments."""
    lines = [line for block in blocks_of(PAGE) if block.language == "bash" for line in block.text.splitlines()]
    return [line.split("  #")[0].strip() for line in lines]


def test_the_page_has_every_way() -> None:
    ways = ("./rehearsal", "'.[", "dist/hyperpod_kit-", "git+file://", LIBRARY)
    assert [[way in command for way in ways].index(True) for command in commands()] == [1, 2, 3, 0, 4]


def shell(directory: Path, command: str) -> str:
    """Run a line in a venv that is there. Raises AssertionError with all that it printed."""
    environment = {**os.environ, "PATH": f"{directory / 'venv/bin'}:{os.environ['PATH']}", "PIP_CACHE_DIR": CACHE}
    environment.pop("PYTHONPATH", None)
    process = subprocess.run(
        ["bash", "-ec", command],
        cwd=directory / "checkout",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
    )
    assert process.returncode == 0, f"{command}: {process.stdout[-4000:]}"
    return process.stdout


CACHE = os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache/pip"))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Path]:
    """A checkout with its wheel in dist/, and the library of an installed bundle."""
    base = tmp_path_factory.mktemp("install")
    subprocess.run(["git", "clone", "--quiet", f"file://{ROOT}", str(base / "checkout")], check=True, timeout=300)
    subprocess.run([sys.executable, "-m", "venv", str(base / "builder")], check=True, timeout=300)
    wheel = f"{base}/builder/bin/python -m pip wheel -q --no-deps --wheel-dir dist ."
    shell(base, wheel)
    bundle = render.render(load(EXAMPLE))
    for place, data in bundle.library.items():
        if place.endswith(".whl"):
            (base / "lib").mkdir()
            (base / place).write_bytes(data)
    return {"base": base, "checkout": base / "checkout", "lib": base / "lib"}


def written(command: str, places: Dict[str, Path]) -> Tuple[str, str]:
    """The line with the places of this test, and how the version begins that it installs."""
    command = command.replace(URL, str(places["checkout"])).replace(LIBRARY, str(places["lib"]))
    head = subprocess.run(
        ["git", "-C", str(places["checkout"]), "rev-parse", "HEAD"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout[:12]
    return command, f"{RELEASE}+c" if str(places["lib"]) in command else f"{RELEASE}.dev0+g{head}"


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.needs("git-checkout")
@pytest.mark.parametrize("command", commands())
def test_every_line_works(command: str, places: Dict[str, Path]) -> None:
    """In an empty venv: the program starts, names its version, and what was installed is outside of the checkout."""
    base = places["base"]
    shutil.rmtree(base / "venv", ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(base / "venv")], check=True, timeout=300)
    (line, version) = written(command, places)
    shell(base, f"{line} -q --disable-pip-version-check")
    assert shell(base, "cd / && hyperpod-kit --version").startswith(f"hyperpod-kit, version {version}")
    shell(
        base,
        "cd / && hyperpod-kit job run --help && python -c 'import hyperpod_kit.checkpoint; import hyperpod_kit.job'",
    )
    if "./rehearsal" in command:
        shell(base, f"cd / && hyperpod-kit rehearse sandbox {places['checkout'] / sources.EXAMPLE}")
    if "[admin]" in command:
        require_same_bundle(base, places["checkout"] / sources.EXAMPLE)


def require_same_bundle(base: Path, config: Path) -> None:
    """From a checkout, a wheel or a git URL: the same kit renders the same bundle."""
    shell(base, f"cd / && hyperpod-kit render {config} --out {base}/bundle")
    sums = (base / "bundle/SHA256SUMS").read_bytes()
    first = base / "SHA256SUMS"
    if not first.exists():
        first.write_bytes(sums)
    assert sums == first.read_bytes()
