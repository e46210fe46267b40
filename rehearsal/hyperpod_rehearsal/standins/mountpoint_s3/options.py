"""The command line of mount-s3, and the form of it that /etc/fstab has."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import List, NoReturn, Optional, Sequence

from hyperpod_rehearsal.standins.fuse.arguments import IGNORED, parse_mount_arguments
from hyperpod_rehearsal.standins.mountpoint_s3.filesystem import MountRules

VERSION = "mount-s3 1.22.0+standin (hyperpod-kit rehearsal stand-in, not Mountpoint for Amazon S3)"

FLAGS = (
    "force-path-style",
    "transfer-acceleration",
    "dual-stack",
    "requester-pays",
    "no-sign-request",
    "read-only",
    "allow-delete",
    "allow-overwrite",
    "incremental-upload",
    "auto-unmount",
    "allow-root",
    "allow-other",
    "log-metrics",
    "debug",
    "debug-crt",
    "no-log",
)
TEXTS = (
    "prefix",
    "region",
    "endpoint-url",
    "bucket-type",
    "profile",
    "storage-class",
    "ca-bundle",
    "expected-bucket-owner",
    "cache",
    "cache-xz",
    "metadata-ttl",
    "negative-metadata-ttl",
    "sse",
    "sse-kms-key-id",
    "upload-checksums",
    "user-agent-prefix",
    "otlp-endpoint",
    "otlp-export-interval",
    "bind",
)
NUMBERS = (
    "maximum-throughput-gbps",
    "max-threads",
    "memory-target",
    "part-size",
    "read-part-size",
    "write-part-size",
    "max-cache-size",
    "cache-block-size",
)
BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,253}[a-z0-9]")
PART_SIZE = 8 << 20
ENDLESS = 1e9


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit code 2, worded as mount-s3 does."""
        print(f"error: {message}\n\nFor more information, try '--help'.", file=sys.stderr)
        sys.exit(2)


class _PrintVersion(argparse.Action):
    def __call__(self, *_: object) -> NoReturn:
        """In one line, which argparse's own action would fold."""
        print(VERSION)
        sys.exit(0)


class MountOptions(argparse.Namespace):
    """The options that have an effect; the others are accepted, as the rehearsal has nothing for them to act on."""

    bucket: str
    mount_point: str
    prefix: Optional[str]
    region: Optional[str]
    endpoint_url: Optional[str]
    profile: Optional[str]
    cache: Optional[str]
    metadata_ttl: Optional[str]
    read_only: bool
    allow_delete: bool
    allow_overwrite: bool
    allow_other: bool
    allow_root: bool
    no_sign_request: bool
    foreground: bool
    uid: int
    gid: int
    dir_mode: int
    file_mode: int
    part_size: Optional[int]
    read_part_size: Optional[int]
    write_part_size: Optional[int]

    def mount_rules(self) -> MountRules:
        """The rules of the file system that these options ask for."""
        part = self.part_size or PART_SIZE
        return MountRules(
            self.allow_delete,
            self.allow_overwrite,
            self.uid,
            self.gid,
            self.dir_mode,
            self.file_mode,
            self._metadata_ttl_seconds(),
            self.read_part_size or part,
            self.write_part_size or part,
        )

    def _metadata_ttl_seconds(self) -> float:
        if self.metadata_ttl is None:
            if self.cache:
                return 60.0
            return 0.1
        return {"minimal": 0.1, "indefinite": ENDLESS}.get(self.metadata_ttl) or float(self.metadata_ttl)


def parse_options(argv: Sequence[str]) -> MountOptions:
    """Options of `mount-s3 BUCKET DIRECTORY ...`; exits with 2 on wrong ones, 0 on --version and --help."""
    parser = _Parser(prog="mount-s3", allow_abbrev=False)
    parser.add_argument("bucket", metavar="BUCKET_NAME")
    parser.add_argument("mount_point", metavar="DIRECTORY")
    parser.add_argument("--version", "-V", action=_PrintVersion, nargs=0)
    parser.add_argument("--foreground", "-f", action="store_true")
    parser.add_argument("-d", dest="debug", action="store_true")
    parser.add_argument("--log-directory", "-l")
    for name in FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    for name in TEXTS:
        parser.add_argument(f"--{name}")
    for name in NUMBERS:
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--uid", type=int, default=os.getuid())
    parser.add_argument("--gid", type=int, default=os.getgid())
    parser.add_argument("--dir-mode", type=_parse_octal, default=0o755)
    parser.add_argument("--file-mode", type=_parse_octal, default=0o644)
    options = parser.parse_args(list(argv), namespace=MountOptions())
    match = re.fullmatch(r"s3://([^/]+)/?(.*)", options.bucket)
    if match:
        options.bucket = match[1]
        options.prefix = match[2] or options.prefix
    options.prefix = options.prefix or ""
    if options.prefix and not options.prefix.endswith("/"):
        parser.error(f"invalid value '{options.prefix}' for '--prefix <PREFIX>': must end in '/'")
    if not BUCKET.fullmatch(options.bucket):
        parser.error(f"invalid value '{options.bucket}' for '<BUCKET_NAME>': not a bucket name")
    if options.metadata_ttl not in (None, "minimal", "indefinite") and not str(options.metadata_ttl).isdigit():
        parser.error(f"invalid value '{options.metadata_ttl}' for '--metadata-ttl <SECONDS|indefinite|minimal>'")
    if options.allow_other and options.allow_root:
        parser.error("the argument '--allow-root' cannot be used with '--allow-other'")
    return options


def arguments_from_mount_helper_argv(argv: Sequence[str]) -> List[str]:
    """The command line that `SOURCE TARGET -o OPTIONS` stands for."""
    positional, options = parse_mount_arguments(argv)
    out = []
    for name, value in options.items():
        if name in IGNORED or name in ("noatime", "relatime") or name.startswith("x-"):
            continue
        if name == "ro":
            flag = "--read-only"
        else:
            flag = f"--{name}"
        if value:
            flag = f"{flag}={value}"
        out.append(flag)
    return out + positional


def _parse_octal(text: str) -> int:
    return int(text, 8)
