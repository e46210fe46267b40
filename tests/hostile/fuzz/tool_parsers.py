"""What programs of others print, and what files of others say to commands that act on them: s5cmd, lfs, btrfs, S3's
documents, Debian packages, the steps of `fan-out`, what ranks tell each other."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import os
import tarfile
from random import Random
from typing import Any, Callable, List, Sequence, Tuple

from hyperpod_kit.bundle import packages
from hyperpod_kit.checkpoint.ranks import wire_values
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.data.bulk import s5cmd
from hyperpod_kit.data.bulk.staging import FileList
from hyperpod_kit.errors import CheckpointError, DataError
from hyperpod_kit.job.fan_out import command
from hyperpod_kit.node.slurm import lease
from hyperpod_kit.run import Completed
from hyperpod_kit.s3 import client as s3_http
from hyperpod_kit.s3.connections import S3Broken
from hyperpod_kit.storage.preload import hsm
from hyperpod_kit.storage.quota.enforced import lustre
from hyperpod_kit.storage.quota.limits import QuotaError
from tests.hostile.fuzz.engine import Parser
from tests.hostile.fuzz.mutate import ODD_WORDS, a_json, some_bytes
from tests.hostile.fuzz.places import file_of
from tests.hostile.fuzz.words import Said, js, of_bytes, of_json, of_rows, text_of

ODD = [word.encode("utf-8", "replace") for word in ODD_WORDS]

LISTED = {
    "key": "s3://corpus/run/a/b.jsonl",
    "etag": "9dd4e461268c8034f5c8564e155c67a6",
    "last_modified": "2026-11-28T20:18:21.052Z",
    "type": "file",
    "size": 10,
    "storage_class": "STANDARD",
}
BROUGHT = {"operation": "cp", "success": True, "source": "s3://corpus/run/a", "destination": "/out/parts/3"}
COMPLAINT = {"operation": "cp", "command": "cp s3://b/a c", "error": "NoSuchKey: status code: 404"}


def read_s5cmd(data: bytes) -> None:
    text = text_of(data)
    s5cmd.parse_copied_file_number(text)
    if not s5cmd.parse_error_line(text).isprintable():
        raise AssertionError("an error for a terminal")
    file = s5cmd.parse_listing_line(text, "s3://corpus/", "run/")
    if file is None:
        return
    listed = FileList(io.StringIO())
    listed.append_refusing_unsafe_path(file)
    [[again]] = listed.groups(10, 1 << 30)
    assert again == file and "\n" not in file.path


QUOTA = (
    b"Disk quotas for prj 4001 (pid 4001):\n"
    b"     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace\n"
    b"           /fsx  1048576* 1000000 2000000 6d23h59m   12       0  100000       -\n"
)
PARTIAL = QUOTA.replace(b"1048576*", b"[1048576]")
PROJECT = b" 4001 P /fsx/ada\n"
STATES = b"/fsx/a: (0x0000000d) released exists archived, archive_id:1\n/fsx/b: (0x00000000)\n"
QGROUP = (
    b"qgroupid         rfer         excl     max_rfer     max_excl\n0/257      16384        16384  1073741824  none\n"
)


class Printed(Said):
    """Of which callers ask for no deadline of their own."""

    def run(self, argv: Sequence[str], **_: Any) -> Completed:
        return Completed(tuple(argv), 0, self.said, "")


def read_lfs(data: bytes) -> None:
    text = text_of(data)
    runner: Any = Printed(text)
    failed: List[Exception] = []
    for read in (
        lambda: hsm.parse_hsm_flags(text, ["/fsx/a", "/fsx/b"]),
        lambda: lustre.parse_quota(text, "/fsx/ada"),
        lambda: lustre.Lustre(runner, "/fsx").read_project_id("/fsx/ada"),
    ):
        try:
            read()
        except (hsm.PreloadError, QuotaError) as err:
            failed.append(err)
    if len(failed) == 3:
        raise failed[0]


LISTING = (
    b'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>true'
    b"</IsTruncated><NextContinuationToken>t</NextContinuationToken><Contents><Key>a%2Fb</Key><Size>12</Size></Contents>"
    b"<CommonPrefixes><Prefix>c/</Prefix></CommonPrefixes></ListBucketResult>"
)
ERROR = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>"


class Answered(s3_http.S3HttpClient):
    """A client that is given one answer to everything."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def _request_with_retries(self, *_: Any, **__: Any) -> s3_http.S3Response:
        return s3_http.S3Response(200, {}, None, self._data)  # type: ignore[arg-type]


def read_s3(data: bytes) -> None:
    client = Answered(data)
    s3_http._parse_refusal(s3_http.S3Response(400, {}, None, data))  # type: ignore[arg-type]
    client.delete_objects("b", {"Objects": []})
    client.list_objects_v2("b", "", "")


def a_package(pack: Callable[[bytes], bytes], ending: str) -> bytes:
    control = b"Package: lustre-client-modules\nVersion: 2.15.4-1\nArchitecture: amd64\nDescription: x\n more\n"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("./control")
        member.size = len(control)
        archive.addfile(member, io.BytesIO(control))
    made = packages.AR_MAGIC
    for name, data in (
        ("debian-binary", b"2.0\n"),
        (f"control.tar{ending}", pack(out.getvalue())),
        (f"data.tar{ending}", pack(b"")),
    ):
        made += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return made


DEBS = [a_package(gzip.compress, ".gz"), a_package(lzma.compress, ".xz"), a_package(bytes, "")]

TOLD = (
    {"a": [1, 2.5, None, (1, "x"), {2: b"bytes"}], "e": CheckpointError("x")},
    layout.CheckpointId(1, 2, 3, "ab"),
    OSError(5, "x", "/a"),
)


def read_told(data: bytes) -> None:
    found = wire_values.unpack(data, "rank 3")
    str(found)


def some_told(rng: Random) -> bytes:
    whole = wire_values.pack(list(TOLD))
    if rng.random() < 0.2:
        return some_bytes(rng, whole, [whole], [])
    size = int.from_bytes(whole[:8], "little")
    text = a_json(rng, [json.loads(whole[8 : 8 + size])])
    return len(text).to_bytes(8, "little") + text + whole[8 + size :]


SAID = (
    {"task": 0, "op": "hello", "node": "n1", "places": [["n1", 40000]]},
    {"task": 0, "op": "far", "read": 1, "received": 2, "found": 3},
    {"task": 0, "op": "failed", "why": "x", "hint": None},
    {"task": 0, "op": "peer", "why": "y"},
)


def read_task(data: bytes) -> None:
    heard: Any = command.Tasks.__new__(command.Tasks)
    heard.all, heard._has_first_message = [command.TaskState("n1", 0.0)], False
    for line in data.split(b"\n"):
        heard._apply_message_line(line)


def read_lease(data: bytes) -> None:
    place = os.path.dirname(file_of(data, "lease/owner-7"))
    with contextlib.suppress(OSError, ValueError):
        os.rename(file_of(b"", "lease/other"), os.path.join(place, f"owner-{text_of(data[:40])}"))
    for name in os.listdir(place):
        if name not in ("owner-7", "other"):
            assert 7 in lease.list_owner_generations(place)
            os.unlink(os.path.join(place, name))
    lease.read_owner(place, 7)


def a_tool(
    name: str,
    call: Callable[[bytes], object],
    declared: Tuple[type[BaseException], ...],
    make: Callable[[Random], bytes],
    seeds: Sequence[bytes],
) -> Parser:
    return Parser(name, call, declared, make, tuple(seeds))


PARSERS = [
    a_tool("data: s5cmd", read_s5cmd, (DataError,), of_json(LISTED, LISTED, BROUGHT, COMPLAINT), [js(LISTED)]),
    a_tool(
        "storage: lfs",
        read_lfs,
        (hsm.PreloadError, QuotaError),
        of_bytes([QUOTA, PARTIAL, PROJECT, STATES], [b"/fsx", b"(0x", b"9" * 5000, b"Filesystem  kbytes", *ODD]),
        [QUOTA, STATES, PROJECT],
    ),
    a_tool(
        "checkpoint: documents of S3",
        read_s3,
        (S3Broken,),
        of_bytes([LISTING, ERROR], [b"<Contents>", b"<Size>", b"</Size>", b"&#0;", b"<!ENTITY a 'b'>", b"&a;", *ODD]),
        [LISTING],
    ),
    a_tool(
        "bundle: Debian packages",
        packages.parse_deb_fields_empty_if_unreadable,
        (),
        of_bytes(DEBS, [packages.AR_MAGIC, b"`\n", b"debian-binary", b"ustar\x0000", b"\xfd7zXZ\x00"]),
        DEBS,
    ),
    a_tool("checkpoint: what ranks tell", read_told, (CheckpointError,), some_told, [wire_values.pack(list(TOLD))]),
    a_tool("fan-out: words of tasks", read_task, (), of_rows(*SAID), [js(one) for one in SAID]),
    a_tool(
        "node: lease on Slurm's state",
        read_lease,
        (),
        lambda rng: rng.choice(ODD) if rng.random() < 0.3 else a_json(rng, [{"instance": "i-1", "host": "h"}]),
        [js({"instance": "i-1", "host": "h"})],
    ),
]
