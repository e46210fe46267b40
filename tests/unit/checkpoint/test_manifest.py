from __future__ import annotations

import json
import random

import pytest

from hyperpod_kit.checkpoint.repository import layout, manifest
from hyperpod_kit.errors import CheckpointError

MANIFEST = manifest.Manifest(
    run="llama", run_id="0" * 32, epoch=2, seq=43, step=110, world=2, plan="blake2b:00", digest="blake2b",
    chunk=1 << 24, total_bytes=200, tensors=9, time="2026-11-20T23:58:03Z",
    shards=(manifest.FileRecord("shard-00000.safetensors", 100, "blake2b:aa", 0),
            manifest.FileRecord("shard-00001.safetensors", 100, "blake2b:bb", 1)),
    extra=manifest.FileRecord("extra.json", 20, "blake2b:cc"), job={"slurm_job_id": "7"})


def test_round_trip_and_plain_json() -> None:
    data = MANIFEST.encode()
    assert manifest.decode(data) == MANIFEST
    assert json.loads(data)["format"] == "hpk-ckpt/1"


def test_every_torn_prefix_is_refused() -> None:
    data = MANIFEST.encode()
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            manifest.decode(data[:length])
    with pytest.raises(CheckpointError):
        manifest.decode(data + b"\n")


def test_every_flipped_byte_is_refused() -> None:
    data = MANIFEST.encode()
    dice = random.Random(1)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << dice.randrange(8)
        with pytest.raises(CheckpointError):
            manifest.decode(bytes(damaged))


def test_what_a_later_version_adds_is_passed_over_but_another_format_is_not() -> None:
    body = json.loads(MANIFEST.encode())
    del body["self"]
    assert manifest.decode(manifest.seal_json({**body, "compression": {"kind": "none"}})) == MANIFEST
    with pytest.raises(CheckpointError, match="format"):
        manifest.decode(manifest.seal_json({**body, "format": "hpk-ckpt/2"}))
    with pytest.raises(CheckpointError, match="names 1 shards of 2"):
        manifest.decode(manifest.seal_json({**body, "shards": body["shards"][:1]}))


def test_attempt_names_have_one_spelling() -> None:
    name = "seq-000043.step-0000000110.e2-7f3a"
    assert str(layout.parse_attempt(name)) == name
    for other in ("seq-43.step-110.e2-7f3a", name + ".BAD", name.upper(), "seq-000043.step-0000000110.e02-7f3a"):
        assert layout.parse_attempt(other) is None
