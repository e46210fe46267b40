"""The record of a rollout: an object beside the cluster's bundles in S3, which outlives the admin's machine.

What nodes run is never taken from it: they are asked. It says which bundle they are to have, what each had before (the
way back), which failed, and whether somebody wants a pause. The pause is an object of its own, so that a run that
writes the record cannot overwrite it.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Mapping, Optional

from hyperpod_kit.aws.s3 import Bucket
from hyperpod_kit.errors import ClusterError
from hyperpod_kit.untrusted.parse import parse_json_object
from hyperpod_kit.untrusted.text import clean_one_line

FORMAT = "hpk-rollout/1"
BUNDLE_ID = re.compile(r"[0-9a-f]{16}")
"""The name of a bundle, which becomes a path on nodes."""
RECORD, PAUSE = "rollout.json", "rollout-pause.json"


class RolloutState(Enum):
    """How far a rollout has come; RUNNING also where the machine that ran it has gone."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    DONE = "done"
    UNDOING = "undoing"
    UNDONE = "undone"


@dataclass(frozen=True)
class RolloutRecord:
    """`bundle_id`: what nodes are to have; `previous`: instance id -> the bundle that it had before; `failed`: instance
    id -> what failed there; `at_work`: instance ids of the batch that a run has begun and not ended; `run`: which run
    of the command wrote this, `by`: on whose machine; `changed_at`: when, in Unix seconds."""

    bundle_id: str
    state: RolloutState
    run: str
    by: str
    changed_at: float
    previous: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    at_work: tuple[str, ...] = ()

    @property
    def is_running(self) -> bool:
        """Whether a run of the command switches nodes, or did when its machine went."""
        return self.state in (RolloutState.RUNNING, RolloutState.UNDOING)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"format": FORMAT, **asdict(self), "state": self.state.value}


class RolloutRecords:
    """The record and the pause of one cluster, below `parent` in the bucket. Methods raise AwsError, Unreachable."""

    def __init__(self, bucket: Bucket, parent: str) -> None:
        self._bucket, self._parent = bucket, parent
        self._etag: Optional[str] = None

    @property
    def uri(self) -> str:
        """Where the record lies."""
        return f"s3://{self._bucket.name}/{self._parent}{RECORD}"

    def read(self) -> Optional[RolloutRecord]:
        """Return the record, None when there is none. Raises ClusterError for one that is none of ours."""
        record, self._etag = self._fetch()
        return record

    def _fetch(self) -> tuple[Optional[RolloutRecord], Optional[str]]:
        """Return the stored record and its ETag. Raises as `read`."""
        stored = self._bucket.get_with_etag(f"{self._parent}{RECORD}")
        if stored is None:
            return None, None
        data, etag = stored
        try:
            return _parse_record(data), etag
        except (ValueError, KeyError, TypeError) as err:
            raise ClusterError(
                f"{self.uri} is not a record of a rollout: {clean_one_line(err)}",
                hint=f"aws s3 rm {self.uri}; the state is then read from the nodes",
            ) from err

    def write(self, record: RolloutRecord) -> RolloutRecord:
        """Write the record with the time, and return it.

        Raises ClusterError where another run of the command has written since this one last read or wrote it.
        """
        written = replace(record, changed_at=time.time())
        text = json.dumps(written.to_dict(), indent=2, sort_keys=True)
        data = f"{text}\n".encode()
        etag = self._bucket.put_if_unchanged(f"{self._parent}{RECORD}", data, self._etag)
        if etag is None:
            raise ClusterError(self._describe_other_run(), hint="hyperpod-kit rollout status")
        self._etag = etag
        return written

    def _describe_other_run(self) -> str:
        other, _ = self._fetch()
        if other is None:
            return f"the record of this rollout, {self.uri}, was deleted: this rollout ends"
        return f"{other.by} has begun another rollout of this cluster, of bundle {other.bundle_id}: this rollout ends"

    def is_pause_wanted(self) -> bool:
        """Whether somebody wants a pause."""
        data = self._bucket.get(f"{self._parent}{PAUSE}")
        return data is not None and b"true" in data

    def set_pause(self, wanted: bool) -> None:
        """Ask for a pause, or take that back."""
        text = json.dumps({"paused": wanted})
        self._bucket.put(f"{self._parent}{PAUSE}", f"{text}\n".encode())


def _parse_record(data: bytes) -> RolloutRecord:
    """Raises ValueError, KeyError, TypeError."""
    fields = parse_json_object(data)
    if fields["format"] != FORMAT:
        raise ValueError(f"its format is {fields['format']!r}")
    return RolloutRecord(
        _bundle_id(fields["bundle_id"]),
        RolloutState(fields["state"]),
        clean_one_line(fields["run"]),
        clean_one_line(fields["by"]),
        float(fields["changed_at"]),
        {name: _bundle_id(text) for name, text in _text_mapping(fields["previous"]).items()},
        _text_mapping(fields["failed"]),
        tuple(_text_mapping(dict.fromkeys(fields["at_work"], ""))),
    )


def _bundle_id(text: Any) -> str:
    """Return the name of a bundle. Raises ValueError."""
    if not isinstance(text, str) or not BUNDLE_ID.fullmatch(text):
        raise ValueError("a bundle id has 16 hexadecimal digits")
    return text


def _text_mapping(value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    return {clean_one_line(name): clean_one_line(text) for name, text in value.items()}
