"""Where the checkpoints of a row lie: in a directory beside the job's log, or in a bucket, with the records there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, List, Mapping, Optional, Protocol

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.store.s3 import S3Store
from hyperpod_kit.s3.client import S3HttpClient
from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.s3.faults import S3Fault
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.server import serve
from hyperpod_rehearsal.standins.install import LIBRARY, install_standins
from tests.support.damage import flip
from tests.support.output import output

BUCKET = "sagemaker-faults"
REGION = "us-east-1"
ACCESS = Key("FAULTS", "nobodys-secret")


class Root(Protocol):
    """A checkpoint root. `told`: as the job names it; `options`: of `job run` besides; `script`: lines that the batch
    script needs; `state`: the directory of the records, from this host."""

    told: str
    options: str
    script: str

    @property
    def state(self) -> Path: ...

    def committed(self) -> List[str]:
        """Names of the committed checkpoints, oldest first."""

    def flip(self, checkpoint: str, file: str) -> None:
        """Turn a bit of a file of a checkpoint."""

    def lose(self, checkpoint: str, file: str) -> None:
        """Remove one."""

    def away(self) -> None:
        """Nobody can use the root any more."""

    def back(self) -> None:
        """Everybody can again."""


class S3Faults(Protocol):
    """What can be made to go wrong with requests."""

    def add(self, fault: S3Fault) -> None: ...

    def clear(self) -> None: ...


class FolderRoot:
    """A directory; `here` from this host, `told` from the nodes."""

    options = script = ""

    def __init__(self, here: Path, told: str) -> None:
        self.path, self.told, self.state = here, told, here / ".hpk"
        self._away = here.with_name(f"{here.name}.away")

    def committed(self) -> List[str]:
        return sorted(path.parent.name for path in self.path.glob(f"seq-*/{layout.MANIFEST_FILE}"))

    def flip(self, checkpoint: str, file: str) -> None:
        flip(self.path / checkpoint / file, 0)

    def lose(self, checkpoint: str, file: str) -> None:
        (self.path / checkpoint / file).unlink()

    def away(self) -> None:
        os.rename(self.path, self._away)

    def back(self) -> None:
        if self.path.exists():  # a rank that was about to write has made another one
            os.rename(self.path, self.path.with_name(f"{self.path.name}.anew"))
        os.rename(self._away, self.path)


class BucketRoot:
    """A prefix of a bucket. `environment`: where the service is, and the key of whoever asks; `exported`: the same for
    the batch script; `records`: the directory for `--state`, from this host, `told_records` from the nodes. `faults`:
    None where nothing can be made to go wrong with requests."""

    def __init__(
        self,
        name: str,
        environment: Mapping[str, str],
        exported: Mapping[str, str],
        faults: Optional[S3Faults],
        records: Path,
        told_records: str,
    ) -> None:
        self.told = f"s3://{BUCKET}/{name}"
        self.options = f"--state {told_records}"
        self.script = "".join(f"export {key}='{value}'\n" for key, value in exported.items())
        self._name, self._faults, self._records = name, faults, records
        self._store = S3Store(self.told, S3HttpClient(environment))

    @property
    def state(self) -> Path:
        found = sorted(self._records.glob(f"*-{self._name}-*"))
        return found[0] if found else self._records / "none"

    def committed(self) -> List[str]:
        names = [name.rstrip("/") for name in self._store.list() if name.startswith("seq-")]
        return [name for name in names if self._store.exists(f"{name}/{layout.MANIFEST_FILE}")]

    def flip(self, checkpoint: str, file: str) -> None:
        data = bytearray(self._store.read(f"{checkpoint}/{file}"))
        data[0] ^= 1
        self._store.overwrite_non_atomically(f"{checkpoint}/{file}", bytes(data))

    def lose(self, checkpoint: str, file: str) -> None:
        self._store.delete(f"{checkpoint}/{file}")

    def away(self) -> None:
        self.fault(status=503)

    def fault(self, below: str = "", **what: Any) -> None:
        """A fault of S3Fault's fields, of requests for this root whose names go on with `below`, a pattern."""
        assert self._faults is not None, "no faults of requests here"
        self._faults.add(
            S3Fault(path=f"{BUCKET}/{self._name}/{below}" if below else f"{BUCKET}(/{self._name})?", **what)
        )

    def back(self) -> None:
        if self._faults is not None:
            self._faults.clear()


class PrivateBuckets:
    """A service of our own on loopback, for the nodes of a Slurm on loopback; `served_to`: the user for whom it is a
    mount of Mountpoint's as well."""

    def __init__(self, place: Path, served_to: Optional[int] = None) -> None:
        self._buckets = StoredBuckets(place)
        self._buckets.create_bucket(BUCKET)
        self._server = serve([("127.0.0.1", 0)], self._buckets, keys={ACCESS.id: ACCESS})
        self._values = {
            "AWS_ENDPOINT_URL_S3": self._server.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS.id,
            "AWS_SECRET_ACCESS_KEY": ACCESS.secret,
        }
        self._mount: Optional[Path] = None
        if served_to is not None:
            self._mount = place.with_name("mnt")
            self._serve(place.with_name("standins"), self._mount, served_to)

    def _serve(self, programs: Path, point: Path, user: int) -> None:
        point.mkdir()
        install_standins(programs)
        options = ["--allow-delete", "--allow-other", "--uid", str(user), "--gid", str(user)]
        mount = ["/usr/bin/python3", "-I", "-S", str(programs / LIBRARY), "mount-s3", *options, BUCKET, str(point)]
        output(["/usr/bin/env", *(f"{name}={value}" for name, value in self._values.items()), *mount])

    def root(self, name: str, records: Path) -> BucketRoot:
        found = BucketRoot(name, self._values, self._values, self._buckets.faults, records, str(records))
        if self._mount is not None:
            found.told, found.script = str(self._mount / name), ""
        return found

    def close(self) -> None:
        if self._mount is not None:
            output(["umount", "-l", str(self._mount)], check=False)
        self._server.close()
