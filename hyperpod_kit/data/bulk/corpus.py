"""A corpus for tests and benchmarks: jsonl like the Chinese Wikipedia's, in files of a given size."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable

from hyperpod_kit.errors import UsageError
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.text import counted

_VOCABULARY = (
    "可唤醒线程",
    "操作",
    "数据",
    "训练模型",
    "存储",
    "集群节点",
    "文件系统",
    "alertable",
    "procedure",
    "thread",
    "waits",
)

_FILLER = b'{"id":"","title":"","text":"%s"}\n'
"""A last line of any length, with the keys of the others: batches of records are made of equal keys."""


def write_random_jsonl_files(
    out: str,
    *,
    files: int,
    bytes_per_file: int,
    refuse_above_total_bytes: int,
    seed: int,
    progress: Callable[[int, int], None],
) -> tuple[int, int]:
    """Write `files` files of `bytes_per_file` bytes each; return (files, bytes).

    One text is written for all of them, each begun at another place: made at the speed of the disk.
    Raises UsageError, before anything is written, if they would be more than `refuse_above_total_bytes`.
    """
    if files * bytes_per_file > refuse_above_total_bytes:
        raise UsageError(
            f"{counted(files, 'file')} of {bytes_per_file} bytes: {files * bytes_per_file} bytes in total, above the "
            f"cap of {refuse_above_total_bytes}",
            hint="--cap",
        )
    by_descriptor.make_directories(out)
    dice = random.Random(seed)
    lines = [_random_json_line(dice, number) for number in range(2000)]
    done = 0
    for number in range(files):
        body, at = bytearray(), dice.randrange(len(lines))
        while len(body) < bytes_per_file:
            body += lines[at % len(lines)]
            at += 1
        # The last line is cut to the size, and stays JSON.
        del body[body.rfind(b"\n", 0, bytes_per_file) + 1 :]
        rest = bytes_per_file - len(body)
        if rest >= len(_FILLER % b""):
            body += _FILLER % (b"x" * (rest - len(_FILLER % b"")))
        elif rest:
            body[-1:] = b" " * rest + b"\n"
        atomic_file.write_atomically(os.path.join(out, f"{number:06d}.jsonl"), bytes(body))
        done += len(body)
        progress(done, files * bytes_per_file)
    return files, done


def _random_json_line(dice: random.Random, number: int) -> bytes:
    text = " ".join(dice.choices(_VOCABULARY, k=dice.randint(20, 220)))
    sample = {"id": str(number), "title": dice.choice(_VOCABULARY), "text": text}
    return json.dumps(sample, ensure_ascii=False).encode() + b"\n"
