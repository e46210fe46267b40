"""lib.tar.gz: the same tar everywhere, whatever compresses it, and nothing in it but what the bundle lists."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Callable

import pytest

from hyperpod_kit.bundle import archive, manifest
from hyperpod_kit.bundle.compare import compare_with_directory
from hyperpod_kit.bundle.render import Bundle, assemble_bundle, render, replace_bundle_directory
from hyperpod_kit.config.load import load
from hyperpod_kit.errors import BundleError
from tests.support.interpreters import interpreters
from tests.support.odd_archives import ODD, odd_tar, with_tar
from tests.support.rows import share

CHECKOUT = Path(__file__).parents[3]
ON_CREATE = (CHECKOUT / "lifecycle_scripts/on_create.sh").read_bytes()
ADMIN_PYTHONS = {version: program for version, program in interpreters().items() if version >= (3, 10)}


def bundle(**more: bytes) -> Bundle:
    """A bundle of a few short files; `more`: modules of its library."""
    shipped = {
        "on_create.sh": ON_CREATE,
        "bin/hyperpod-kit": b"#!/bin/sh\n",
        "node_config.json": b'{\n  "failure_pause": 0.0\n}\n',
        "lib/__main__.py": b"",
        "lib/hyperpod_kit/version.py": b'RELEASE = "0"\n',
        **{f"lib/hyperpod_kit/{name}.py": data for name, data in more.items()},
    }
    return assemble_bundle(shipped, "0", "bucket", "kit/demo/")


class Download:
    """A bundle as a node downloads it, which may be spoilt, and what its entry script says of it."""

    def __init__(self, directory: Path, downloaded: Bundle) -> None:
        self.staging, self.root = directory / "staging", directory / "root"
        replace_bundle_directory(downloaded, self.staging)

    def refusal(self) -> str:
        """Run the entry script, which must fail before anything is installed; the last error of its log."""
        done = subprocess.run(
            ["bash", str(self.staging / "on_create.sh")],
            env={"PATH": os.environ["PATH"], "HPK_ROOT": str(self.root)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 1, done.stdout + done.stderr
        assert not (self.root / "opt/hyperpod-kit").exists(), "something was installed"
        last = json.loads((self.root / "var/log/provision/provisioning.log").read_text().splitlines()[-1])
        assert (last["step"], last["status"]) == ("verify-bundle", "failed")
        assert last["hint"].startswith("hyperpod-kit upload")
        return str(last["error"])


# --- the same input, the same archive -------------------------------------------------------------------------------

MEMBERS = {"lib/b.py": b"x" * 513, "lib/a/empty.py": b"", "lib/a.py": b"print()\n"}
OF_MEMBERS = "715b2a0829169d466bc22c0db308ce9f47eb7c8f8f6e962bb961a366d6ab9a6e"


def test_the_tar_of_the_same_members_never_changes() -> None:
    """A bundle's id follows from it, on each Python and on each machine: this digest is for ever."""
    tar = archive.make_tar(MEMBERS)
    assert tar == archive.make_tar(dict(reversed(MEMBERS.items())))
    assert hashlib.sha256(tar).hexdigest() == OF_MEMBERS


ID_OF_THE_EXAMPLE = """\
import sys
sys.path[:0] = sys.argv[1:]
from pathlib import Path
from hyperpod_kit.bundle.render import render
from hyperpod_kit.config.load import load
print(render(load(Path("provisioning_parameters.example.json"))).bundle_id)
"""


@pytest.mark.parametrize(
    "version", share(map(pytest.param, ADMIN_PYTHONS), 2), ids=lambda version: ".".join(map(str, version))
)
def test_each_python_of_an_admin_renders_the_same_bundle(version: tuple[int, int]) -> None:
    """With this interpreter's pure-Python libraries: none of them matters to what is rendered."""
    libraries = [entry for entry in sys.path if entry.endswith("site-packages")]
    done = subprocess.run(
        [ADMIN_PYTHONS[version], "-B", "-c", ID_OF_THE_EXAMPLE, str(CHECKOUT), *libraries],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == render(load(CHECKOUT / "provisioning_parameters.example.json")).bundle_id


def test_the_tools_of_a_node_and_python_read_the_same_from_it(tmp_path: Path) -> None:
    data = archive.gzip_tar(archive.make_tar(MEMBERS))
    assert archive.read_members(data) == MEMBERS
    (tmp_path / "lib.tar.gz").write_bytes(data)
    listed = subprocess.run(
        ["tar", "-tvzf", "lib.tar.gz", "--utc"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (listed.returncode, listed.stderr) == (0, "")
    assert {line.split()[:2][0] + " " + line.split()[1] for line in listed.stdout.splitlines()} == {"-rw-r--r-- 0/0"}
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == sorted(MEMBERS)
    assert {line.split()[3] for line in listed.stdout.splitlines()} == {"1980-01-01"}
    done = subprocess.run(["tar", "-xzf", "lib.tar.gz"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert {place: (tmp_path / place).read_bytes() for place in MEMBERS} == MEMBERS


def test_a_name_that_the_format_cannot_hold_is_refused() -> None:
    archive.make_tar({"lib/" + "x" * 96: b""})
    with pytest.raises(BundleError, match="longer than 100 bytes"):
        archive.make_tar({"lib/" + "x" * 97: b""})


def test_the_id_and_the_comparisons_do_not_depend_on_who_compressed(tmp_path: Path) -> None:
    made = bundle()
    tar = archive.gunzip_tar(made.files["lib.tar.gz"])
    for other in (gzip.compress(tar, 1), gzip.compress(tar, 9, mtime=5), stored_blocks(tar)):
        assert other != made.files["lib.tar.gz"] and archive.have_same_contents(other, made.files["lib.tar.gz"])
        replace_bundle_directory(replace(made, files={**made.files, "lib.tar.gz": other}), tmp_path / "b")
        assert not compare_with_directory(made, tmp_path / "b")


def stored_blocks(data: bytes) -> bytes:
    """A gzip file of `data` that is not compressed at all."""
    compressor = zlib.compressobj(0, zlib.DEFLATED, 31)
    return compressor.compress(data) + compressor.flush()


# --- what an archive must not hold ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, odd in ODD.items() if odd.admin])
def test_an_odd_member_is_named_to_the_admin(name: str) -> None:
    with pytest.raises(BundleError, match=ODD[name].admin):
        archive.read_members(archive.gzip_tar(odd_tar(bundle(), name)))


@pytest.mark.parametrize("name", ODD)
def test_an_odd_member_is_named_on_the_node_although_every_digest_is_right(name: str, tmp_path: Path) -> None:
    made = bundle()
    download = Download(tmp_path, with_tar(made, odd_tar(made, name)))
    assert ODD[name].node in download.refusal()
    assert not Path("/etc/hpk-evil").exists() and not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("place", ["../evil", "/etc/hpk-evil", "lib/../../evil", "lib//x.py", "a b"])
def test_a_list_with_a_place_outside_of_the_bundle_is_refused(place: str, tmp_path: Path) -> None:
    made = bundle()
    listing = made.files["SHA256SUMS"] + f"{hashlib.sha256(b'').hexdigest()}  {place}\n".encode()
    download = Download(tmp_path, replace(made, files={**made.files, "SHA256SUMS": listing}))
    assert place in download.refusal()


# --- damaged, truncated, swapped, older -----------------------------------------------------------------------------

OLDER = bundle(run=b"print('older')\n")
DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a bit": (lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], "lib.tar.gz is damaged"),
    "a bit of its checksum": (lambda data: data[:-6] + bytes([data[-6] ^ 1]) + data[-5:], "lib.tar.gz is damaged"),
    "truncated": (lambda data: data[: len(data) // 2], "lib.tar.gz is damaged"),
    "truncated by a byte": (lambda data: data[:-1], "lib.tar.gz is damaged"),
    "empty": (lambda data: b"", "lib.tar.gz is damaged"),
    "with a tail": (lambda data: data + b"x", "lib.tar.gz is damaged"),
    "a web page": (lambda data: b"<html>not found</html>", "lib.tar.gz is damaged"),
    "an older one": (lambda data: OLDER.files["lib.tar.gz"], "lib.tar.gz is not the archive of this bundle"),
    "not a tar": (lambda data: gzip.compress(b"x" * 4096), "lib.tar.gz is not the archive of this bundle"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_archive_is_named_on_the_node_and_not_opened(what: str, tmp_path: Path) -> None:
    made = bundle()
    spoil, words = DAMAGE[what]
    download = Download(tmp_path, made)
    tar = shutil.which("tar")
    assert tar is not None
    (tmp_path / "shims").mkdir()
    (tmp_path / "shims/tar").write_text(f'#!/bin/sh\necho opened >> {tmp_path}/opened\nexec {tar} "$@"\n')
    (tmp_path / "shims/tar").chmod(0o755)
    (download.staging / "lib.tar.gz").write_bytes(spoil(made.files["lib.tar.gz"]))
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{tmp_path}/shims:{path}"
    try:
        assert words in download.refusal()
    finally:
        os.environ["PATH"] = path
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_archive_is_named_to_the_admin_by_a_comparison(what: str, tmp_path: Path) -> None:
    made = bundle()
    replace_bundle_directory(made, tmp_path / "b")
    (tmp_path / "b/lib.tar.gz").write_bytes(DAMAGE[what][0](made.files["lib.tar.gz"]))
    changed = {*compare_with_directory(made, tmp_path / "b").changed}
    assert "lib.tar.gz" in changed and changed <= {"lib.tar.gz", "lib/hyperpod_kit/run.py"}


def test_an_older_archive_with_its_own_digest_is_named_by_the_sums(tmp_path: Path) -> None:
    download = Download(tmp_path, bundle())
    for place in ("lib.tar.gz", "lib.tar.sha256"):
        (download.staging / place).write_bytes(OLDER.files[place])
    assert "lib.tar.sha256: FAILED" in download.refusal()


def test_a_whole_older_bundle_is_named_by_the_prefix(tmp_path: Path) -> None:
    made = bundle()
    download = Download(tmp_path, OLDER)
    download.staging.rename(tmp_path / made.bundle_id)
    download.staging = tmp_path / made.bundle_id
    assert f"the files are those of bundle {OLDER.bundle_id}" in download.refusal()


@pytest.mark.parametrize(
    "make",
    [
        lambda path: None,
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: os.mkfifo(path),
        lambda path: os.mknod(path, 0o20644, os.makedev(1, 5)) if os.geteuid() == 0 else os.mkfifo(path),
    ],
    ids=["missing", "directory", "link", "pipe", "device"],
)
def test_an_archive_that_is_no_plain_file_is_not_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    download = Download(tmp_path, bundle())
    (download.staging / "lib.tar.gz").unlink()
    make(download.staging / "lib.tar.gz")
    assert "lib.tar.gz is missing, or is not a plain file" in download.refusal()


def test_gigabytes_of_zeros_are_not_unpacked_into_memory() -> None:
    """More than LARGEST, of which a few kilobytes tell."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(1 << 20)
    data = b"".join(compressor.compress(block) for _ in range((archive.LARGEST >> 20) + 1)) + compressor.flush()
    with pytest.raises(BundleError, match="more than 64 MiB"):
        archive.gunzip_tar(data)


def test_what_tarfile_writes_is_read_but_is_not_the_archive_of_the_bundle() -> None:
    """Same members, other times: a node would refuse it, and so a comparison tells it from ours."""
    made = bundle()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for place, data in made.library.items():
            member = tarfile.TarInfo(place)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    assert archive.read_members(out.getvalue()) == made.library
    assert not archive.have_same_contents(out.getvalue(), made.files["lib.tar.gz"])


def test_the_format_of_a_description() -> None:
    assert manifest.parse_bundle_format(bundle().files["bundle.json"]) == "hpk-bundle/2"
    for text in (b"", b"[]", b'{"format": 2}', b'{"format": "hpk-bundle/1\\u001b[31m"}', b"\xff"):
        assert manifest.parse_bundle_format(text) == ""
