"""What the machine can do with the same bytes: copy them in memory, write them, read them cold."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.read import stream
from hyperpod_kit.untrusted import by_descriptor

BLOCK = 8 * 1024 * 1024
WRITE_THREADS = (1, 2)
READ_THREADS = (1, 2, 4)
_FAR_AT_ONCE, _FAR = 1.5, 1.15
_MADV_POPULATE_WRITE = 23
_PAGE = 4096
# O_DIRECT where the file system has it (tmpfs before Linux 6.6 has not): then the limit is a buffered one.
_DIRECT = os.O_DIRECT


class MemoryFloor:
    """Copies of `tensors` into one prefaulted piece of shared memory. `ways` names how; `seconds(way)` does it once."""

    def __init__(self, tensors: list[torch.Tensor], threads: int) -> None:
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        sizes = [(tensor.numel() * tensor.element_size() + 63) // 64 * 64 for tensor in tensors]
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        room = -(-max(sum(sizes), 1) // BLOCK) * BLOCK
        fd = os.memfd_create("hpk-floor")
        try:
            os.ftruncate(fd, room)
            self.map = mmap.mmap(fd, room)
        finally:
            os.close(fd)
        flat = torch.frombuffer(self.map, dtype=torch.uint8)
        try:
            self.map.madvise(_MADV_POPULATE_WRITE)
        except OSError:
            flat.zero_()
        at = 0
        for tensor, size in zip(tensors, sizes, strict=True):
            if tensor.numel():
                part = flat[at : at + tensor.numel() * tensor.element_size()]
                self._pairs.append((part.view(tensor.dtype).view(tensor.shape), tensor.detach()))
            at += size
        counts = range(1, threads + 1)
        self.ways = [f"memmove {count}" for count in counts] + [f"torch {count}" for count in counts]
        self._shares = {count: _split_copies_into_address_shares(self._pairs, count) for count in counts}

    def time_copy(self, way: str) -> float:
        """Copy all bytes once in the given way and return the seconds."""
        kind, count = way.split()
        if kind == "torch":
            before = torch.get_num_threads()
            torch.set_num_threads(int(count))
            begin = time.perf_counter()
            for target, source in self._pairs:
                target.copy_(source)
            spent = time.perf_counter() - begin
            torch.set_num_threads(before)
            return spent
        shares = self._shares[int(count)]

        def copy_share(number: int) -> None:
            for target, source, size in shares[number]:
                ctypes.memmove(target, source, size)  # releases the GIL

        return _time_in_threads(copy_share, int(count))

    def time_digest_and_copy(self, threads: int, algorithm: str) -> float:
        """Digest each chunk and then copy it, all bytes, by `threads` threads, and return the seconds: what a
        restore that proves every byte cannot go below."""
        alg, shares = digest.algorithm(algorithm), self._shares[threads]

        def digest_and_copy_share(number: int) -> None:
            for target, source, size in shares[number]:
                for at in range(0, size, digest.CHUNK):
                    part = min(digest.CHUNK, size - at)
                    alg.leaf((ctypes.c_char * part).from_address(source + at))
                    ctypes.memmove(target + at, source + at, part)

        return _time_in_threads(digest_and_copy_share, threads)


def ways_that_may_be_fastest(ways: dict[str, list[float]]) -> list[str]:
    """Return the ways to reach a limit that may still be the fastest: those far behind after one sample, or
    behind after two, are left out. `ways` has the samples of each so far."""
    most = max(len(samples) for samples in ways.values())
    if not most:
        return list(ways)
    best = min(min(samples) for samples in ways.values() if samples)
    far = _FAR
    if most == 1:
        far = _FAR_AT_ONCE
    return [way for way, samples in ways.items() if len(samples) == most and min(samples) <= far * best]


def _split_copies_into_address_shares(
    pairs: list[tuple[torch.Tensor, torch.Tensor]], count: int
) -> list[list[tuple[int, int, int]]]:
    """Return (target, source, bytes) for each of `count` threads: equal shares, cut only between two shares."""
    total = sum(target.numel() * target.element_size() for target, _ in pairs)
    shares: list[list[tuple[int, int, int]]] = [[] for _ in range(count)]
    done = 0
    for target, source in pairs:
        if not source.is_contiguous():
            source = source.contiguous()
        at, size = 0, target.numel() * target.element_size()
        while at < size:
            number = min(count - 1, done * count // total)
            end = -(-total * (number + 1) // count)
            part = min(size - at, end - done)
            shares[number].append((target.data_ptr() + at, source.data_ptr() + at, part))
            at += part
            done += part
    return shares


def _time_in_threads(work: Callable[[int], None], count: int) -> float:
    """Run `work(number)` in `count` threads and return the seconds until all have ended. Raises what one of them
    raised."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as err:
            errors.append(err)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - begin
    if errors:
        raise errors[0]
    return spent


def _page_aligned_ranges(size: int, count: int) -> list[tuple[int, int]]:
    """Divide `size` bytes into `count` ranges of whole pages."""
    bounds = [size * number // count // _PAGE * _PAGE for number in range(count)] + [size]
    return list(zip(bounds, bounds[1:], strict=False))


def time_write_and_fsync(source: mmap.mmap, size: int, directory: Path, name: str, threads: int) -> float:
    """Write and fsync `size` bytes (whole pages) of `source` into `threads` new files, which are removed again;
    return the seconds."""
    ranges = _page_aligned_ranges(size // _PAGE * _PAGE, threads)
    view = memoryview(source)

    def write_range(number: int) -> None:
        begin, end = ranges[number]
        fd = _open_direct_or_buffered(directory / f"{name}-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            for at in range(begin, end, BLOCK):
                part = view[at : min(at + BLOCK, end)]
                if os.pwrite(fd, part, at - begin) != len(part):
                    raise OSError(f"a short write to {directory}")
            os.fsync(fd)
        finally:
            os.close(fd)

    try:
        return _time_in_threads(write_range, threads)
    finally:
        view.release()
        for number in range(threads):
            by_descriptor.unlink(directory / f"{name}-{number}", missing_ok=True)


def time_read(files: list[Path], threads: int) -> float:
    """Read all bytes of `files` once and return the seconds; the caller has emptied the page cache.

    In requests and into memory of the size that a restore uses: into small pages a disk takes more and
    smaller ones, and a limit below what the engine reaches would be none.
    """
    parts: list[tuple[Path, int]] = []
    for path in files:
        parts += [(path, at) for at in range(0, path.stat().st_size, digest.CHUNK)]
    parts.reverse()
    descriptors = {path: _open_direct_or_buffered(path, os.O_RDONLY) for path in files}
    buffers = [stream.Buffer(digest.CHUNK).view for _ in range(threads)]
    for buffer in buffers:
        buffer[:] = bytes(len(buffer))

    def read_parts(number: int) -> None:
        while True:
            try:
                path, at = parts.pop()
            except IndexError:
                return
            os.preadv(descriptors[path], [buffers[number]], at)

    try:
        return _time_in_threads(read_parts, threads)
    finally:
        for fd in descriptors.values():
            os.close(fd)


def _open_direct_or_buffered(path: Path, flags: int) -> int:
    try:
        return by_descriptor.open_own_or_root_file(path, flags | _DIRECT, 0o600)
    except OSError:
        if flags & os.O_CREAT:
            by_descriptor.unlink(path, missing_ok=True)
        return by_descriptor.open_own_or_root_file(path, flags, 0o600)
