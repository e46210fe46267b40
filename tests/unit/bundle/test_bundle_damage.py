"""A sweep over every file of the real bundle: damaged, missing or joined by a stranger, the creation stops with its
name before anything of the bundle runs and before anything is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Callable

import pytest

from hyperpod_kit.bundle.render import Bundle, bundle_file_mode_from_name, render, replace_bundle_directory
from hyperpod_kit.config.load import load

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
ENTRY = "on_create.sh"


class Download:
    """The bundle as HyperPod downloaded it, below `root`'s /tmp, with the entry script that is run."""

    def __init__(self, directory: Path, bundle: Bundle) -> None:
        self.root, self.staging, self.bundle = directory / "root", directory / "staging", bundle
        self.canary, self.pauses = directory / "canary", directory / "pauses"
        (directory / "shims").mkdir(parents=True)
        # The pause before the bad news, which only CloudWatch needs.
        (directory / "shims/sleep").write_text(f"#!/bin/sh\necho $1 >> {directory}/pauses\n")
        (directory / "shims/sleep").chmod(0o755)
        self._path = f"{directory}/shims:{os.environ['PATH']}"
        replace_bundle_directory(bundle, self.staging)

    def refusal(self) -> str:
        """Run the entry script, which must fail; the last error in provisioning.log."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.pauses.unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", str(self.staging / ENTRY)],
            env={"PATH": self._path, "HPK_ROOT": str(self.root)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
        )
        assert done.returncode == 1, done.stdout
        assert not (self.root / "opt/hyperpod-kit").exists(), "something was installed"
        assert not self.canary.exists(), "something of the bundle ran"
        assert float(self.pauses.read_text()) == 60, "CloudWatch needs the pause"
        last = json.loads((self.root / "var/log/provision/provisioning.log").read_text().splitlines()[-1])
        assert (last["step"], last["status"]) == ("verify-bundle", "failed")
        return str(last["error"])

    def harmful(self, place: str) -> bytes:
        """The same file with code in it that would be seen, or with one bit turned over."""
        data = self.bundle.files[place]
        if place.endswith(".py"):
            return data + f"\nopen({str(self.canary)!r}, 'w')\n".encode()
        if place.endswith(".sh"):
            return data + f"\ntouch {self.canary}\n".encode()
        return data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


@pytest.fixture(scope="module")
def download(tmp_path_factory: pytest.TempPathFactory) -> Download:
    return Download(tmp_path_factory.mktemp("damage"), render(load(EXAMPLE)))


def every_nth(places: list[str], share: int, of: int = 4) -> list[str]:
    """One place in four, so that the sweep is spread over several workers."""
    return sorted(places)[share::of]


@pytest.mark.parametrize("share", [0, *(pytest.param(share, marks=pytest.mark.full) for share in range(1, 4))])
def test_every_damaged_and_every_missing_file_is_named(download: Download, share: int) -> None:
    for place in every_nth(list(download.bundle.files), share):
        path = download.staging / place
        path.write_bytes(download.harmful(place))
        assert place in download.refusal(), place
        if place != ENTRY:
            path.unlink()
            assert place in download.refusal(), place
        path.write_bytes(download.bundle.files[place])


def test_a_stranger_anywhere_is_named(download: Download) -> None:
    make: list[Callable[[Path], object]] = [
        lambda path: path.write_text(f"open({str(download.canary)!r}, 'w')"),
        lambda path: path.symlink_to("/etc/passwd"),
        lambda path: os.mkfifo(path),
    ]
    folders = sorted({Path(place).parent.as_posix() for place in download.bundle.files})
    for number, folder in enumerate([*folders, "units", "."]):
        path = download.staging / folder / ("stranger.py", ".hidden", "a b'$(x).sh")[number % 3]
        make[number % len(make)](path)
        said = download.refusal()
        assert f"{path.relative_to(download.staging).as_posix()} is not listed in SHA256SUMS" in said
        path.unlink()
    (download.staging / "lib").mkdir()
    assert "lib lies beside lib.tar.gz, which holds it" in download.refusal()
    (download.staging / "lib").rmdir()


def test_a_listed_file_that_became_a_link_is_named(download: Download) -> None:
    """The bytes are right, but where the link leads can change after the check."""
    place = "slurm/prolog.sh"
    path = download.staging / place
    path.rename(download.staging.parent / "elsewhere.sh")
    path.symlink_to(download.staging.parent / "elsewhere.sh")
    assert f"{place} is a symbolic link" in download.refusal()
    path.unlink()
    path.write_bytes(download.bundle.files[place])


def test_a_list_that_lies_consistently_is_caught_by_the_name_of_the_prefix(download: Download, tmp_path: Path) -> None:
    other = Download(tmp_path, download.bundle)
    named = tmp_path / ("0" * 16)
    other.staging.rename(named)
    other.staging = named
    assert f"the files are those of bundle {download.bundle.bundle_id}" in other.refusal()


def test_a_copy_that_went_wrong_is_named_and_never_runs(download: Download, tmp_path: Path) -> None:
    other = Download(tmp_path, download.bundle)
    copied = f"{other.root}/opt/hyperpod-kit/{download.bundle.bundle_id}.partial/lib/hyperpod_kit/run.py"
    (tmp_path / "shims/rm").write_text(f'#!/bin/sh\n/bin/rm "$@" && [ "$1" = -rf ] || : > {copied}\n')
    (tmp_path / "shims/rm").chmod(0o755)
    done = subprocess.run(
        ["bash", str(other.staging / ENTRY)],
        env={"PATH": other._path, "HPK_ROOT": str(other.root)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "install-bundle: failed" in done.stdout
    assert f"{download.bundle.bundle_id}.partial: lib/hyperpod_kit/run.py: FAILED" in done.stdout
    assert not (other.root / "opt/hyperpod-kit/current").exists()


def test_the_untouched_bundle_is_installed_with_its_mode_bits(download: Download, tmp_path: Path) -> None:
    """S3 keeps no mode bits: what is downloaded has none, what is installed has those that `render` writes."""
    other = Download(tmp_path, download.bundle)
    for path in other.staging.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    (other.root / "opt/ml/config").mkdir(parents=True)
    # The program stops at once on a cluster that is not Slurm's: what it does is not the question here.
    (other.root / "opt/ml/config/resource_config.json").write_text('{"ClusterType": "Kubernetes"}')
    subprocess.run(
        ["bash", str(other.staging / ENTRY)],
        env={"PATH": other._path, "HPK_ROOT": str(other.root)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
    )
    current = other.root / "opt/hyperpod-kit/current"
    installed = download.bundle.installed_files
    bits = {place: (current / place).stat().st_mode & 0o777 for place in installed}
    assert bits == {place: bundle_file_mode_from_name(place) for place in installed}
    assert {place: (current / place).read_bytes() for place in bits} == installed
    assert not (current / "lib.tar.gz").exists()
    assert bits["on_create.sh"] == bits["bin/hyperpod-kit"] == 0o755 and bits["node_config.json"] == 0o644
