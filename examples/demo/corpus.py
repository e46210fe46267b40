"""Real text that is on every machine: the sources of Python's standard library, put into the data bucket."""

from __future__ import annotations

import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List

import boto3

LIMIT = 4 << 20
"""Bytes of text: enough for a small model, read in a second through a mount."""


def files() -> List[Path]:
    """Top-level modules of the standard library in name order, up to LIMIT bytes."""
    chosen, total = [], 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        size = path.stat().st_size
        if size > 4096 and total + size <= LIMIT:
            chosen.append(path)
            total += size
    return chosen


def upload(endpoint: str, bucket: str, prefix: str, size: int = LIMIT) -> int:
    """Put the corpus under s3://bucket/prefix and return its size in bytes. The bucket is created when missing.

    `size`: where the corpus is larger, its first files with exactly so many bytes.
    """
    client = boto3.client("s3", endpoint_url=endpoint)
    if bucket not in {entry["Name"] for entry in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket=bucket)
    texts = {}
    for path in files():
        texts[path.name] = path.read_bytes()[:size]
        size -= len(texts[path.name])
        if not size:
            break

    def put(name: str) -> None:
        client.put_object(Bucket=bucket, Key=prefix + name, Body=texts[name])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put, texts))
    return sum(map(len, texts.values()))
