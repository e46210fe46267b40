"""Memory for a checkpoint that is exported: pages of a file on the disk that is written to, which the system can take
back, and not of this process alone."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import torch

from hyperpod_kit.checkpoint.atomic_output import directory_after_rename
from hyperpod_kit.checkpoint.codec.dtypes import TYPES
from hyperpod_kit.checkpoint.repository.format.shard import ITEM_BYTES, NATIVE, TensorSpec
from hyperpod_kit.checkpoint.restore.gathered_tensors import TensorAllocator
from hyperpod_kit.checkpoint.transfer.load import allocate_host_tensor
from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.untrusted import by_descriptor

_ALIGN = 64


@contextlib.contextmanager
def scratch_allocator(output_path: Path) -> Iterator[TensorAllocator]:
    """Yield an allocator of tensors in files, one file for each call, which have no name any more when they are
    used. Raise HyperpodKitError for what fails: it says nothing of the checkpoint."""
    path = output_path.with_name(f"{output_path.name}.scratch")

    def allocate(specs: Mapping[str, TensorSpec]) -> Mapping[str, torch.Tensor]:
        offsets, at = {}, 0
        for name, spec in specs.items():
            offsets[name] = at
            at += -(-spec.nbytes // _ALIGN) * _ALIGN
        tensors = _create_mapped_tensors(path, offsets, specs, at)
        by_descriptor.unlink(path)
        return tensors

    try:
        yield allocate
    finally:
        by_descriptor.unlink(path, missing_ok=True)


def safetensors_allocator(path: Path, names: Mapping[str, str]) -> TensorAllocator:
    """Return an allocator whose tensors are mapped into a safetensors file, which is complete when they are
    filled; `names`: stored name -> name in the file. Raise UsageError for types that such files do not have,
    HyperpodKitError."""

    def allocate(specs: Mapping[str, TensorSpec]) -> Mapping[str, torch.Tensor]:
        unsupported = next((spec for spec in specs.values() if spec.dtype not in NATIVE), None)
        if unsupported is not None:
            raise UsageError(
                f"{unsupported.name} is of {unsupported.dtype}, which safetensors does not have", hint="--to torch"
            )
        ordered = sorted(specs.values(), key=lambda spec: (-ITEM_BYTES[spec.dtype], names[spec.name]))
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        offsets, at = {}, 0
        for spec in ordered:
            offsets[spec.name] = at
            at += spec.nbytes
            header[names[spec.name]] = {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "data_offsets": [offsets[spec.name], at],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        head = len(text).to_bytes(8, "little") + text
        tensors = _create_mapped_tensors(
            path, {name: len(head) + offset for name, offset in offsets.items()}, specs, len(head) + at
        )
        _write_header(path, head)
        return tensors

    return allocate


def _create_mapped_tensors(
    path: Path, offsets: Mapping[str, int], specs: Mapping[str, TensorSpec], size: int
) -> dict[str, torch.Tensor]:
    """Create the file and return the tensors at those offsets of it. Raise HyperpodKitError."""
    try:
        fd = by_descriptor.open_own_or_root_file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            if size:
                os.posix_fallocate(fd, 0, size)  # a full disk is said here, not by a signal in the middle of a copy
        finally:
            os.close(fd)
    except OSError as err:
        directory = directory_after_rename(path)
        raise HyperpodKitError(f"cannot make {path.name} of {size} bytes in {directory}: {err.strerror}") from err
    if size:
        mapped = torch.from_file(str(path), True, size, dtype=torch.uint8)
    else:
        mapped = torch.empty(0, dtype=torch.uint8, device="cpu")
    storage = mapped.untyped_storage()
    tensors: dict[str, torch.Tensor] = {}
    for name, spec in specs.items():
        if spec.nbytes:
            tensors[name] = _tensor_view(storage, offsets[name], spec)
        else:
            tensors[name] = allocate_host_tensor(spec)
    return tensors


def _tensor_view(storage: torch.UntypedStorage, begin: int, spec: TensorSpec) -> torch.Tensor:
    """A tensor with a storage of its own, of which torch.save writes all."""
    part = cast("torch.UntypedStorage", storage[begin : begin + spec.nbytes])
    return torch.empty(0, dtype=TYPES[spec.dtype], device="cpu").set_(part, 0, spec.shape, _strides(spec.shape))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def _write_header(path: Path, head: bytes) -> None:
    try:
        with by_descriptor.open_stream_for_writing(path, "r+b") as file:
            file.write(head)
    except OSError as err:
        raise HyperpodKitError(f"cannot write {path.name} in {directory_after_rename(path)}: {err.strerror}") from err
