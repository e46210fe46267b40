"""One tensor out of a checkpoint, without torch: its chunks are compared, its pieces put together in a file.

Memory does not grow with the tensor. A piece is a box of the whole; its rows are written where they belong.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format import index, non_tensor_state, rows
from hyperpod_kit.checkpoint.repository.format.boxes import Runs
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord
from hyperpod_kit.checkpoint.repository.format.shard import ITEM_BYTES, NATIVE, TensorSpec
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.read.chunk_reader import Pump
from hyperpod_kit.checkpoint.repository.read.stream import Shard
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError, HyperpodKitError, UsageError
from hyperpod_kit.untrusted import parse, walk
from hyperpod_kit.untrusted.text import clean_one_line

NPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
    "C64": "<c8",
    "C128": "<c16",
}
"""Types that numpy has."""


class Written(NamedTuple):
    """What was written: the tensor of the checkpoint `attempt`; newer ones that were passed over, and why."""

    attempt: str
    name: str
    dtype: str
    shape: Tuple[int, ...]
    nbytes: int
    rejected: Tuple[Tuple[str, str], ...] = ()


class NotWritten(HyperpodKitError):
    """The file could not be written: no word on the checkpoint."""


def export_tensor(store: Store, name: str, path: str, checkpoint_id: Optional[str] = None) -> Written:
    """Write the tensor to `path`, a new .safetensors or .npy file: of the newest checkpoint that can be proved,
    or of `checkpoint_id`.

    `name` is that of `show --tensors`, or a tied tensor's other one. Raise UsageError for a name that is not
    there, a type that numpy lacks or a file that is there, NotWritten, NoCheckpoint, NoValidCheckpoint,
    StorageUnreadable, DigestUnavailable, CheckpointError, OSError.
    """
    kind = os.path.splitext(path)[1]
    if kind not in (".safetensors", ".npy"):
        raise UsageError(f"{path}: expected a file name that ends in .safetensors or .npy")
    if os.path.lexists(path):
        raise UsageError(f"{path} already exists")
    if checkpoint_id is not None:
        return _export_from_checkpoint(store, checkpoint_id, name, path, kind)
    written, selected = selection.load_newest_accepted(
        store, lambda each: _export_from_checkpoint(store, each, name, path, kind)
    )
    return written._replace(rejected=selected.rejected)


def _export_from_checkpoint(store: Store, checkpoint_id: str, name: str, path: str, kind: str) -> Written:
    body = verify.read_manifest(store, checkpoint_id)
    if body.index is None:
        raise CheckpointError(f"{checkpoint_id} has no tensor index")
    tensors = rows.decode_index_file(verify.read_verified_small_file(store, checkpoint_id, body.index))
    if name not in tensors:
        stored = non_tensor_state.stored_tensor_name(_read_shared_tree(store, checkpoint_id, body.extra), name)
        if stored not in tensors:
            raise UsageError(
                f"{checkpoint_id} has no tensor {name!r}", hint=f"hyperpod-kit checkpoint show {store.url} --tensors"
            )
        name = str(stored)
    pieces = tensors[name]
    spec = pieces[0].spec
    head = (_npy_header if kind == ".npy" else _safetensors_header)(spec)
    target = _Output(path, head)
    try:
        for number, shard_pieces in itertools.groupby(pieces, key=lambda piece: piece.shard):
            if number >= body.world:
                raise CheckpointError(f"{clean_one_line(name)} is in shard {number} of {body.world}")
            record = body.shards[number]
            reader = store.open_read(f"{checkpoint_id}/{record.file}")
            try:
                shard = Shard(reader, record.size, record.root, name=record.file, chunk=body.chunk)
                _copy_verified_pieces(shard, list(shard_pieces), target)
            finally:
                reader.close()
        target.sync_and_publish()
    finally:
        target.close_and_remove_partial()
    full_spec = TensorSpec(name, spec.dtype, spec.full_shape)
    return Written(checkpoint_id, name, spec.dtype, spec.full_shape, full_spec.nbytes)


def _read_shared_tree(store: Store, checkpoint_id: str, record: FileRecord) -> Any:
    """Return the part of extra.json that the ranks have in common. Raise CheckpointError, OSError."""
    data = verify.read_verified_small_file(store, checkpoint_id, record)
    try:
        return parse.parse_json_object(data, len(data)).get("shared")
    except ValueError as err:
        raise CheckpointError(f"{record.file} is damaged: {err}") from None


def _safetensors_header(spec: TensorSpec) -> bytes:
    """Return the header of a file with this tensor alone."""
    full_spec = TensorSpec(spec.name, spec.dtype, spec.full_shape)
    dtype, shape, _ = full_spec.as_safetensors()
    header: Dict[str, Any] = {spec.name: {"dtype": dtype, "shape": shape, "data_offsets": [0, full_spec.nbytes]}}
    if spec.dtype not in NATIVE:
        header["__metadata__"] = {"hpk": json.dumps({"dtypes": {spec.name: [spec.dtype, list(spec.full_shape)]}})}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text


def _npy_header(spec: TensorSpec) -> bytes:
    """Return numpy's header, version 1.0. Raise UsageError for a type that numpy lacks."""
    if spec.dtype not in NPY:
        raise UsageError(f"{spec.name} is {spec.dtype}, a type that numpy does not have", hint="--out NAME.safetensors")
    shape = "".join(f"{extent}, " for extent in spec.full_shape)
    text = f"{{'descr': '{NPY[spec.dtype]}', 'fortran_order': False, 'shape': ({shape.rstrip()}), }}".encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


class _Output:
    """A file that has its name only when it is whole. Its directory is held meanwhile."""

    def __init__(self, path: str, head: bytes) -> None:
        self._path = path
        self.begin = len(head)
        with self._raising_not_written():
            self._folder, self._name = walk.open_parent(path)
        self._partial = f"{self._name}.partial-{os.getpid()}"
        self._fd = -1
        try:
            with self._raising_not_written():
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._fd = os.open(self._partial, flags, 0o666, dir_fd=self._folder)
                os.pwrite(self._fd, head, 0)
        except BaseException:
            self.close_and_remove_partial()
            raise

    def put(self, view: memoryview, at: int) -> None:
        """Write the bytes at that offset of the data. Safe for threads."""
        with self._raising_not_written():
            while len(view):
                done = os.pwrite(self._fd, view, self.begin + at)
                view, at = view[done:], at + done

    def sync_and_publish(self) -> None:
        with self._raising_not_written():
            os.fsync(self._fd)
            # What came there meanwhile stays.
            os.link(self._partial, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)

    def close_and_remove_partial(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            with contextlib.suppress(OSError):
                os.unlink(self._partial, dir_fd=self._folder)
        os.close(self._folder)

    @contextlib.contextmanager
    def _raising_not_written(self) -> Iterator[None]:
        try:
            yield
        except OSError as err:
            raise NotWritten(f"{self._path} could not be written: {err.strerror or err}") from err


def _copy_verified_pieces(shard: Shard, pieces: List[index.Piece], target: _Output) -> None:
    targets = [
        (piece.begin, piece.begin + piece.spec.nbytes, _runs_in_full_tensor(piece.spec))
        for piece in pieces
        if piece.spec.nbytes
    ]
    last = max((end for _, end, _ in targets), default=0)
    if last > shard.data_end:
        raise CheckpointError(f"{shard.name} has a tensor up to byte {last}, and data up to {shard.data_end}")
    numbers = {number for begin, end, _ in targets for number in range(begin // shard.chunk, -(-end // shard.chunk))}

    def deliver(_: Shard, at: int, view: memoryview) -> None:
        for begin, end, box in targets:
            first, last = max(begin, at), min(end, at + len(view))
            if first < last:
                for source, dest, size in box.contiguous_runs(first - begin, last - begin):
                    view_offset = begin + source - at
                    target.put(view[view_offset : view_offset + size], dest)

    with Pump([(shard, number) for number in sorted(numbers)]) as pump:
        pump.deliver_all_and_wait(deliver)


def _runs_in_full_tensor(spec: TensorSpec) -> Runs:
    return Runs(spec.full_shape, spec.offsets or (0,) * len(spec.shape), spec.shape, ITEM_BYTES[spec.dtype])
