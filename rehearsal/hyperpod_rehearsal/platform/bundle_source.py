"""What the platform itself reads of a lifecycle bundle: one file, which tells it who is who in Slurm."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional

from hyperpod_kit.errors import RehearsalError
from hyperpod_rehearsal.agent.s3_client import split_uri
from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.s3.store import StoredBuckets

FILE = "provisioning_parameters.json"


def read_object(store: StoredBuckets, bucket: str, key: str) -> bytes:
    """The bytes of an object. Raises S3Error."""
    _, ranges = store.bucket(bucket).open(key)
    parts = []
    for part in ranges:
        with part.file as file:
            file.seek(part.offset)
            parts.append(file.read(part.length))
    return b"".join(parts)


def read_provisioning_parameters(store: StoredBuckets, request: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """The first provisioning_parameters.json beside the entry script of any group, None when there is none.

    Raises RehearsalError when it is no JSON object.
    """
    for group in request.get("InstanceGroups", []):
        uri = (group.get("LifeCycleConfig") or {}).get("SourceS3Uri")
        if not uri:
            continue
        bucket, prefix = split_uri(uri)
        try:
            data = json.loads(read_object(store, bucket, prefix + FILE))
        except S3Error:
            continue
        except ValueError as err:
            raise RehearsalError(f"{uri.rstrip('/')}/{FILE} is not JSON: {err}") from err
        if not isinstance(data, dict):
            raise RehearsalError(f"{uri.rstrip('/')}/{FILE} holds no JSON object")
        return data
    return None
