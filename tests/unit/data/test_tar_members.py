"""The short way through a sample of a tar beside tarfile's: it gives the same, or leaves it to tarfile."""

from __future__ import annotations

import contextlib
import io
import random
import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hyperpod_kit.data.formats.tar import header_check_sum, parse_record, parse_record_if_plain

NAMES = [
    "a.jpg",
    "a.cls",
    "dir/a.tar.gz",
    "._a.jpg",
    ".DS_Store",
    "a",
    "ä.txt",
    "dir/",
    "x" * 99 + "y",
    "d/" * 60 + "a.b",
]
KINDS = [tarfile.REGTYPE] * 6 + [tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.CONTTYPE, tarfile.FIFOTYPE]


def piece(rng: random.Random) -> bytes:
    """Members one after another, without the blocks of zeros at a tar's end."""
    out = io.BytesIO()
    form = rng.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for _ in range(rng.randint(1, 3)):
            member = tarfile.TarInfo(rng.choice(NAMES))
            member.type = rng.choice(KINDS)
            member.mtime = rng.choice([0, 1e9, 1e9 + 0.5, -1, 1 << 34])
            member.uid = rng.choice([0, 1000, 1 << 22])
            member.uname = rng.choice(["", "root", "ü"])
            member.devmajor = rng.choice([0, 0, 7])
            body = rng.randbytes(rng.choice([0, 1, 511, 512, 513, 9000]))
            member.size = len(body) if member.isreg() else 0
            with contextlib.suppress(ValueError):  # what a form cannot say
                archive.addfile(member, io.BytesIO(body))
        end = out.tell()
    return out.getvalue()[:end]


def changed(data: bytes, rng: random.Random) -> bytes:
    """Bytes of a header, with or without a check sum of them, or the end."""
    found = bytearray(data)
    if not found:
        return data
    act = rng.randrange(4)
    if act == 0:
        return bytes(found[: rng.randrange(len(found))])
    at = rng.randrange(len(found) // 512) * 512 if act < 3 else 0
    for _ in range(rng.randint(1, 3)):
        found[at + rng.randrange(512)] = rng.choice([0, 32, 48, 49, 55, 56, 128, 255, rng.randrange(256)])
    if act > 1:
        header = found[at : at + 512]
        total = sum(header) - sum(header[148:156]) + 256
        found[at + 148 : at + 156] = rng.choice([b"%06o\0 ", b"%06o \0", b"%07o\0"]) % total
    return bytes(found)


def alike(data: bytes) -> bool:
    """Whether the short way took it; it gave what tarfile gives."""
    found = parse_record_if_plain(data)
    if found is None:
        return False
    expected = parse_record(data)
    assert found == expected and list(found) == list(expected)
    return True


@given(st.integers(0, 1 << 40))
def test_the_short_way_gives_what_tarfile_gives(seed: int) -> None:
    rng = random.Random(seed)
    data = piece(rng)
    alike(data)
    for _ in range(5):
        alike(changed(data, rng))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_usual_samples_go_the_short_way(form: int) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for ending, body in (("jpg", bytes(range(256)) * 40), ("cls", b"7"), ("json", b"")):
            member = tarfile.TarInfo(f"train/00012.{ending}")
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
        end = out.tell()
    data = out.getvalue()[:end]
    assert alike(data) and parse_record_if_plain(data) == {
        "__key__": "train/00012",
        "jpg": bytes(range(256)) * 40,
        "cls": b"7",
        "json": b"",
    }
    assert parse_record_if_plain(b"") is None and parse_record_if_plain(data + bytes(1024)) is None
    wrong = bytearray(data)
    wrong[124] ^= 1  # of the size, and the check sum is that of before
    assert parse_record_if_plain(bytes(wrong)) is None


@given(st.binary(min_size=512, max_size=512))
@example(b"\xff" * 512)
@example(bytes(512))
def test_a_check_sum_is_the_sum_of_the_bytes(header: bytes) -> None:
    assert header_check_sum(header) == sum(header) - sum(header[148:156]) + 8 * ord(" ")
