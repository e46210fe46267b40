"""Parts of the stand-ins that need no mount."""

import os
from datetime import datetime, timezone

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_rehearsal.standins.fuse import wire
from hyperpod_rehearsal.standins.fuse.arguments import parse_mount_arguments, unknown_options
from hyperpod_rehearsal.standins.mountpoint_s3.options import arguments_from_mount_helper_argv, parse_options
from hyperpod_rehearsal.standins.mountpoint_s3.settings import load_settings
from hyperpod_rehearsal.standins.mountpoint_s3.sigv4 import EMPTY_SHA256, AccessKey, sign_request_headers
from hyperpod_rehearsal.standins.passthrough.identity import PosixIdentity, may_access


def test_signatures_are_those_of_botocore():
    request = AWSRequest("GET", "http://127.0.0.1:9000/bucket/a%20b", params={"prefix": "x/", "list-type": "2"})
    request.headers["x-amz-content-sha256"] = EMPTY_SHA256
    S3SigV4Auth(BotoCredentials("AKID", "secret", "token"), "s3", "us-east-1").add_auth(request)
    moment = datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    signed = sign_request_headers(
        AccessKey("AKID", "secret", "token"),
        "us-east-1",
        "GET",
        "/bucket/a%20b",
        "list-type=2&prefix=x%2F",
        {"host": "127.0.0.1:9000", "x-amz-content-sha256": EMPTY_SHA256},
        moment,
    )
    assert signed["authorization"] == request.headers["Authorization"]


def test_settings_come_from_the_environment_before_the_files(tmp_path):
    (tmp_path / "config").write_text(
        "[default]\nregion = eu-west-1\nendpoint_url = http://10.1.0.1:9000\n[profile two]\nregion = us-west-2\n"
    )
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = A%\naws_secret_access_key = B:=\n")
    files = {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")}
    settings = load_settings(files)
    assert settings == ("http://10.1.0.1:9000", "eu-west-1", AccessKey("A%", "B:=", None))
    assert load_settings({**files, "AWS_PROFILE": "two"}) == ("", "us-west-2", None)
    more = load_settings(
        {
            **files,
            "AWS_REGION": "us-east-2",
            "AWS_ENDPOINT_URL": "http://e",
            "AWS_ACCESS_KEY_ID": "C",
            "AWS_SECRET_ACCESS_KEY": "D",
            "AWS_SESSION_TOKEN": "T",
        },
        endpoint="http://option",
    )
    assert more == ("http://option", "us-east-2", AccessKey("C", "D", "T"))


def test_the_form_of_fstab_becomes_a_command_line():
    argv = arguments_from_mount_helper_argv(
        ["s3://bucket/pre/fix/", "/mnt", "-o", "rw,_netdev,nofail,allow-other,uid=5,x-systemd.automount", "-o", "ro"]
    )
    assert argv == ["--allow-other", "--uid=5", "--read-only", "s3://bucket/pre/fix/", "/mnt"]
    options = parse_options(argv)
    assert (options.bucket, options.prefix, options.mount_point) == ("bucket", "pre/fix/", "/mnt")
    assert (options.mount_rules().uid, options.mount_rules().ttl, options.read_only) == (5, 0.1, True)


def test_metadata_ttl():
    assert [
        parse_options(["bucket", "/m", *more]).mount_rules().ttl
        for more in (
            [],
            ["--cache", "/c"],
            ["--metadata-ttl", "30"],
            ["--metadata-ttl=minimal"],
            ["--metadata-ttl=0"],
            ["--metadata-ttl=indefinite"],
        )
    ] == [0.1, 60, 30, 0.1, 0, 1e9]


def test_arguments_of_mount_helpers():
    arguments = parse_mount_arguments(
        ["fs:/", "/mnt", "-s", "-N", "/proc/1/ns/mnt", "-t", "efs.x", "-o", "tls,accesspoint=a=b", "-orw,"]
    )
    assert arguments.positional == ["fs:/", "/mnt"]
    assert arguments.options == {"tls": "", "accesspoint": "a=b", "rw": ""}
    assert unknown_options({"tls": "", "rw": "", "x-systemd.a": "", "typo": ""}, ["tls"]) == ["typo"]


@given(st.integers(0, 0o777), st.integers(0, 7), st.integers(0, 2), st.integers(0, 2))
def test_access_by_mode_bits(mode, mask, uid_shift, gid_shift):
    status = os.stat_result((0o100000 | mode, 1, 1, 1, 1000, 2000, 0, 0, 0, 0))
    user = PosixIdentity(1000 + uid_shift, 1999 + gid_shift, (2000,) if gid_shift == 2 else ())
    bits = mode >> 6 if uid_shift == 0 else mode >> 3 if gid_shift else mode
    assert may_access(user, status, mask) == (bits & mask == mask)
    assert may_access(PosixIdentity(0, 0), status, mask & 6)


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=40), st.integers(64, 300))
def test_directories_are_packed_without_loss(names, size):
    entries = [(name, 8, number) for number, name in enumerate(names, 1)]
    offset, seen = 0, []
    while True:
        block = wire.pack_directory(entries, offset, size)
        assert len(block) <= size
        if not block:
            break
        position = 0
        while position < len(block):
            inode, offset, length, kind = wire.DIRENT.unpack_from(block, position)
            seen.append((block[position + wire.DIRENT.size :][:length], kind, inode))
            position += (wire.DIRENT.size + length + 7) // 8 * 8
    assert seen == entries
