"""Where a version comes from: each kind of place a package can lie in, with real git, real archives, real metadata."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hyperpod_kit.version import RELEASE, release_number_of_version, version_of_kit_in_directory

REPOSITORY = Path(__file__).resolve().parents[2]
AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b.example")


def git(directory: Path, *words: str) -> str:
    argv = ["git", *AUTHOR, "-C", str(directory), *words]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit: the two files that say of an archive which commit it is."""
    directory = tmp_path / "checkout"
    directory.mkdir()
    git(directory, "init", "--quiet")
    for name in ("commit.txt", ".gitattributes"):
        (directory / name).write_bytes((REPOSITORY / name).read_bytes())
    git(directory, "add", ".")
    git(directory, "commit", "--quiet", "-m", "first")
    return directory


def development(directory: Path) -> str:
    return f"{RELEASE}.dev0+g{git(directory, 'rev-parse', 'HEAD')[:12]}"


def unpacked(directory: Path, to: Path) -> Path:
    to.mkdir()
    archive = to.with_suffix(".tar")
    git(directory, "archive", "--output", str(archive), "HEAD")
    subprocess.run(["tar", "-xf", str(archive), "-C", str(to)], check=True, timeout=60)
    return to


def test_a_commit_has_its_hash_and_a_tag_of_the_release_is_the_release(checkout: Path, tmp_path: Path) -> None:
    assert version_of_kit_in_directory(str(checkout)) == development(checkout)
    assert version_of_kit_in_directory(str(unpacked(checkout, tmp_path / "between"))) == development(checkout)
    git(checkout, "tag", f"v{RELEASE}-rc1")
    assert version_of_kit_in_directory(str(checkout)) == development(checkout)
    git(checkout, "tag", "-a", "-m", "release", f"v{RELEASE}")
    assert version_of_kit_in_directory(str(checkout)) == RELEASE
    assert version_of_kit_in_directory(str(unpacked(checkout, tmp_path / "released"))) == RELEASE
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "second")
    assert version_of_kit_in_directory(str(checkout)) == development(checkout)


def test_the_repository_of_a_hook_is_not_asked(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = development(checkout)
    monkeypatch.setenv("GIT_DIR", str(REPOSITORY / ".git"))
    assert version_of_kit_in_directory(str(checkout)) == expected


@pytest.mark.parametrize("name", ["git is not installed", "git refuses"])
def test_without_git_a_checkout_has_the_number_alone(
    name: str, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "git refuses":
        program = tmp_path / "git"
        program.write_text("#!/bin/sh\necho fatal: detected dubious ownership >&2\nexit 128\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert version_of_kit_in_directory(str(checkout)) == RELEASE


def test_an_installation_counts_before_the_checkout_around_it(checkout: Path) -> None:
    (checkout / "hyperpod_kit-9.8.7.dist-info").mkdir()
    assert version_of_kit_in_directory(str(checkout)) == "9.8.7"
    # An upgrade that was cut off leaves two: neither is believed.
    (checkout / "hyperpod_kit-9.8.8.dev0+gabc.dist-info").mkdir()
    assert version_of_kit_in_directory(str(checkout)) == development(checkout)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Metadata-Version: 2.4\nName: hyperpod-kit\nVersion: 0.3.1.dev0+gab\n\nVersion: 5\n", "0.3.1.dev0+gab"),
        ("Metadata-Version: 2.4\nName: another\nVersion: 4\n", RELEASE),
        ("", RELEASE),
        ("\xff", RELEASE),
    ],
)
def test_an_sdist_says_it_in_its_metadata(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "PKG-INFO").write_bytes(text.encode("latin-1"))
    assert version_of_kit_in_directory(str(tmp_path)) == expected


def test_elsewhere_it_is_the_number_alone(tmp_path: Path) -> None:
    assert version_of_kit_in_directory(str(tmp_path)) == RELEASE
    assert version_of_kit_in_directory(str(tmp_path / "absent")) == RELEASE
    (tmp_path / "commit.txt").write_bytes((REPOSITORY / "commit.txt").read_bytes())  # not filled in
    assert version_of_kit_in_directory(str(tmp_path)) == RELEASE


@pytest.mark.parametrize("text", [RELEASE, f"{RELEASE}.dev0+g0123456789ab", f"{RELEASE}+c0123456789ab"])
def test_a_commit_can_be_masked(text: str) -> None:
    assert release_number_of_version(text) == RELEASE


def test_nobody_pays_for_it_who_does_not_ask() -> None:
    program = (
        "import sys, hyperpod_kit\n"
        "assert 'hyperpod_kit.version' not in sys.modules and 'subprocess' not in sys.modules\n"
        "print(hyperpod_kit.__version__)\n"
    )
    argv = [sys.executable, "-c", program]
    answer = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, timeout=60)
    assert release_number_of_version(answer.stdout.strip()) == RELEASE
