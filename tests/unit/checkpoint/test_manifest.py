from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.memory import MemoryStore
from hyperpod_kit.errors import CheckpointError
from tests.unit.checkpoint.small_checkpoint import put_checkpoint

MANIFEST = manifest.Manifest(
    run="llama",
    run_id="0" * 32,
    epoch=2,
    seq=43,
    step=110,
    world=2,
    plan="blake2b:00",
    digest="blake2b",
    chunk=1 << 24,
    total_bytes=200,
    tensors=9,
    time="2026-11-20T23:58:03Z",
    shards=(
        manifest.FileRecord("shard-00000.safetensors", 100, "blake2b:aa", 0),
        manifest.FileRecord("shard-00001.safetensors", 100, "blake2b:bb", 1),
    ),
    extra=manifest.FileRecord("extra.json", 20, "blake2b:cc"),
    job={"slurm_job_id": "7"},
)


def test_round_trip_and_plain_json() -> None:
    data = MANIFEST.encode()
    assert manifest.decode(data) == MANIFEST
    assert json.loads(data)["format"] == "hpk-ckpt/1"


@pytest.mark.parametrize(
    "root", ["", "blake2b", "blake2b:", "xxh3:aa", "sha512:aa", "blake2b:AA", "blake2b:" + "a" * 129, 7]
)
def test_a_root_is_a_digest_by_the_algorithm_that_the_format_or_the_manifest_names(root: Any) -> None:
    for changed in (
        replace(MANIFEST, shards=(replace(MANIFEST.shards[0], root=root), MANIFEST.shards[1])),
        replace(MANIFEST, extra=replace(MANIFEST.extra, root=root)),
    ):
        with pytest.raises(CheckpointError, match=r"root of .*which it cannot be"):
            manifest.decode(changed.encode())


def test_every_torn_prefix_is_refused() -> None:
    data = MANIFEST.encode()
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            manifest.decode(data[:length])
    with pytest.raises(CheckpointError):
        manifest.decode(data + b"\n")


def test_every_flipped_bit_is_refused() -> None:
    data = MANIFEST.encode()
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(CheckpointError):
                manifest.decode(bytes(damaged))


numbers, text = st.integers(0, 2**60), st.text(max_size=12)
names = st.from_regex("[a-z0-9][a-z0-9_-]{0,9}", fullmatch=True)
digits = st.from_regex("[0-9a-f]{1,32}", fullmatch=True)
records = st.builds(manifest.FileRecord, text, numbers, digits)
small = st.builds(manifest.FileRecord, text, st.integers(0, layout.LARGEST_SMALL), digits.map("blake2b:{}".format))
values = st.one_of(st.integers(), text, st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False))


@st.composite
def manifests(draw: st.DrawFn) -> manifest.Manifest:
    world, digest = draw(st.integers(1, 4)), draw(names)
    shards = [replace(draw(records), file=layout.shard_file(rank), rank=rank) for rank in range(world)]
    return manifest.Manifest(
        run=draw(text),
        run_id=draw(text),
        epoch=draw(numbers),
        seq=draw(numbers),
        step=draw(numbers),
        world=world,
        plan=draw(text),
        digest=digest,
        chunk=draw(st.integers(1, 2**24)),
        total_bytes=draw(numbers),
        tensors=draw(numbers),
        time=draw(text),
        shards=tuple(replace(shard, root=f"{digest}:{shard.root}") for shard in shards),
        extra=replace(draw(small), file=layout.EXTRA_FILE),
        index=draw(st.none() | small.map(lambda found: replace(found, file=layout.INDEX_FILE))),
        metrics=draw(st.dictionaries(text, st.floats(allow_nan=False, allow_infinity=False), max_size=3)),
        parent=draw(st.none() | st.dictionaries(text, numbers, max_size=2)),
        job=draw(st.dictionaries(text, values, max_size=3)),
        versions=draw(st.dictionaries(text, text, max_size=3)),
    )


@given(manifests())
def test_any_manifest_comes_back(made: manifest.Manifest) -> None:
    data = made.encode()
    assert manifest.decode(data) == made and manifest.decode(data).encode() == data


@given(
    st.recursive(values, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)),
    st.data(),
)
def test_sealed_json_is_whole_or_refused(value: object, data: st.DataObject) -> None:
    sealed = manifest.seal_json({"value": value})
    assert manifest.parse_sealed_json(sealed, "it") == {"value": value}
    at = data.draw(st.integers(0, len(sealed) - 1))
    for other in (
        sealed[:at],
        sealed[:at] + sealed[at + 1 :],
        sealed[:at] + sealed[at : at + 1] + sealed[at:],
        sealed[:at] + bytes([sealed[at] ^ 1 << data.draw(st.integers(0, 7))]) + sealed[at + 1 :],
    ):
        with pytest.raises(CheckpointError):
            manifest.parse_sealed_json(other, "it")


def test_what_a_later_version_adds_is_passed_over_but_another_format_is_not() -> None:
    body = json.loads(MANIFEST.encode())
    del body["self"]
    assert manifest.decode(manifest.seal_json({**body, "compression": {"kind": "none"}})) == MANIFEST
    with pytest.raises(CheckpointError, match="format"):
        manifest.decode(manifest.seal_json({**body, "format": "hpk-ckpt/2"}))
    with pytest.raises(CheckpointError, match="names 1 shard of 2"):
        manifest.decode(manifest.seal_json({**body, "shards": body["shards"][:1]}))


def test_attempt_names_have_one_spelling() -> None:
    name = "seq-000043.step-0000000110.e2-7f3a"
    assert str(layout.parse_checkpoint_id(name)) == name
    for other in ("seq-43.step-110.e2-7f3a", name + ".BAD", name.upper(), "seq-000043.step-0000000110.e02-7f3a"):
        assert layout.parse_checkpoint_id(other) is None


@given(
    st.builds(
        layout.CheckpointId,
        st.integers(0, 10**12),
        st.integers(0, 10**14),
        st.integers(0, 10**6),
        st.text("0123456789abcdef", min_size=4, max_size=16),
    )
)
def test_any_attempt_name_comes_back(name: layout.CheckpointId) -> None:
    assert layout.parse_checkpoint_id(str(name)) == name
    assert layout.parse_tombstone(layout.tombstone_file(str(name))) == str(name)
    # Discovery starts listings there.
    assert layout.name_sorting_before_seq(name.seq) < str(name)


@given(st.text(max_size=60))
def test_what_is_no_name_is_none(text: str) -> None:
    parsed = layout.parse_checkpoint_id(text)
    assert parsed is None or str(parsed) == text


@pytest.mark.parametrize(
    "place,value",
    [
        (("chunk",), "x"),
        (("chunk",), 0),
        (("chunk",), 10**15),
        (("world",), "x"),
        (("world",), True),
        (("step",), -1),
        (("time",), 5),
        (("job",), []),
        (("parent",), 3),
        (("shards", 0, "root"), 5),
        (("shards", 0, "size"), -1),
        (("shards", 0, "file"), "../../../etc/shadow"),
        (("extra", "file"), "shard-00000.safetensors"),
        (("shards",), {}),
    ],
)
def test_a_manifest_that_proves_itself_and_says_something_odd_is_passed_over(
    place: tuple[Any, ...], value: object
) -> None:
    store = MemoryStore("memory://odd")
    old, new = put_checkpoint(store, 1), put_checkpoint(store, 2)
    name = f"{new}/{layout.MANIFEST_FILE}"
    body = manifest.parse_sealed_json(store.read(name), name)
    inner = body
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    store.overwrite_non_atomically(name, manifest.seal_json(body))
    found = selection.load_newest_accepted(store, lambda attempt: verify.verify_checkpoint(store, attempt))[1]
    assert found.checkpoint_id == old and found.rejected[0][0] == new
