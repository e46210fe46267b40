"""The ground on which the acts take place: a shared directory, hostile users' trees, and victims' with a canary."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, Optional, Tuple

from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.data.bulk import merge
from hyperpod_kit.data.loading.position import DataStep
from hyperpod_kit.data.loading.sample_log import SampleLog
from hyperpod_kit.job.goodput import time_rows
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.storage.quota import request_box, requests
from hyperpod_kit.untrusted import owner
from tests.hostile.users import ATTACKER, VICTIM, place
from tests.unit.checkpoint.small_checkpoint import put_checkpoint, put_tensors

REPOSITORY = Path(__file__).parents[3]
SECOND = 4003
MEANT = {"data": "0" * 32, "samples": 6, "last": "drop"}
HOSTILE = (ATTACKER, SECOND)
CANARY = b"the canary of victims' files"
_LARGEST = 8 << 20


class Ground:
    """`fsx`: sticky, everybody's; `archive`: root's, which everybody may read; `victims`: what must not change."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.fsx, self.archive, self.home = top / "fsx", top / "archive", top / "home"
        self.victim, self.admin, self.pattern = self.fsx / "victim", top / "admin", top / "pattern"
        self.names: list[str] = []
        self.fsx.mkdir()
        self.fsx.chmod(0o1777)
        self.archive.mkdir()
        self.home.mkdir(mode=0o711)
        for folder, uid in ((self.victim, VICTIM), (self.admin, 0)):
            self._victims_tree(folder, uid)
        self._pattern()
        request_box.make_request_box(str(self.fsx))

    def request(self, uid: int, mine: Path) -> str:
        """The id of a request of a hostile user's for that directory."""

        def put() -> None:
            with contextlib.closing(request_box.RequestBox(str(self.fsx))) as box:
                for earlier in [one for one in box.list_pending_and_refusal_reasons()[0] if one.uid == uid]:
                    os.unlink(os.path.join(box.path, earlier.file))  # unanswered: ten of them would be the most
                box.add_request(requests.QuotaRequest(str(mine), 1 << 30, 0, "please", 1.7e9))

        owner.run_as_user_in_child(put, uid, str(mine))
        with contextlib.closing(request_box.RequestBox(str(self.fsx))) as box:
            return next(
                one.id for one in box.list_pending_and_refusal_reasons()[0] if one.request.directory == str(mine)
            )

    def _victims_tree(self, folder: Path, uid: int) -> None:
        (folder / "run").mkdir(parents=True)
        (folder / "parts").mkdir()
        names = [put_checkpoint(PosixStore(str(folder / "run")), seq) for seq in (1, 2)]
        for path in (folder / "thesis.tex", folder / "parts" / "data.bin", folder / "run" / names[0] / "notes"):
            path.write_bytes(CANARY * 100)
        own(folder, uid, 0o700)

    def _pattern(self) -> None:
        """What hostile users' directories begin as."""
        made = self.pattern
        (made / "data").mkdir(parents=True)
        for name in ("run", "other"):
            (made / name).mkdir()
            self.names = [put_tensors(PosixStore(str(made / name)), seq) for seq in (1, 2, 3)]
        rows = [
            {"t": 1.7e9, "job": "7", "restart": 0, "event": "attempt", "attempt": "7.0.0", "from": None},
            {"t": 1.7e9 + 90, "job": "7", "restart": 0, "event": "ended", "attempt": "7.0.0", "outcome": "crash"},
        ]
        (made / "run" / ".hpk" / "time").mkdir(parents=True)
        (made / "run" / ".hpk" / "attempts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        times = time_rows.TimeRow(
            "7.0.0", "n1", 1.7e9, 1.7e9 + 60, Phase.STEP, 1.7e9 + 9, 1, 40, (1, 8.0), 0.5, {"step": 50.0}
        )
        (made / "run" / ".hpk" / "time" / "7.0.0.jsonl").write_bytes(time_rows.encoded(times))
        (made / "history").write_text("{}")
        (made / "scalars").mkdir()
        lines = b"".join(json.dumps({"text": f"line {number}"}).encode() + b"\n" for number in range(50))
        (made / "data" / "a.jsonl").write_bytes(lines)
        (made / "data" / "b.jsonl.gz").write_bytes(gzip.compress(lines))
        header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        (made / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
        (made / "foreign" / "10").mkdir(parents=True)
        (made / "foreign" / "10" / ".metadata").write_bytes(b"\x80\x02}q\x00.")
        shutil.copy(REPOSITORY / "provisioning_parameters.example.json", made / "config.json")
        (made / "quotas.json").write_text(json.dumps({"directories": {str(self.fsx / "victim"): ["a@b"]}}))
        (made / "train.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=1\nsrun python train.py\n")
        (made / "audit.log").write_text('{"time": 1.7e9, "host": "n1", "number": 3, "op": "read", "path": "/fsx/a"}\n')
        (made / "package.deb").write_bytes(b"!<arch>\n" + bytes(200))
        (made / "tokenizer.json").write_text("{}")
        self._beside_data(made)
        (made / "audit.sqlite").write_bytes(b"SQLite format 3\0" + bytes(200))

    def _beside_data(self, made: Path) -> None:
        """What programs of ours leave beside data."""
        words = [sys.executable, "-m", "hyperpod_kit.cli.main", "data", "index", str(made / "data")]
        # In a process of its own: its threads are no part of what is forked here.
        subprocess.run([*words, "--out", str(made / "index")], cwd=REPOSITORY, check=True, capture_output=True)
        merge.merge_into_tars(
            str(made / "data"), str(made / "merged-data"), size=1 << 20, progress=lambda done, total: None
        )
        ledger = SampleLog(made / "ledger", rank=0, ranks=1, meant=MEANT, launch="7")
        ledger.write_segment_header(0)
        ledger.log_received_samples(DataStep(0, 3, 0, 3), [2, 0, 5])
        (made / "merged").mkdir()

    def fresh(self, uid: int, number: int) -> Path:
        """A hostile user's directory."""
        mine = self.fsx / f"u{uid}-{number}"
        shutil.copytree(self.pattern, mine)
        own(mine, uid, 0o755)
        return mine

    def runner_place(self, uid: int, number: int) -> Path:
        """Of who runs the command, and nobody else's."""
        made = self.home / f"{uid}-{number}"
        (made / "out").mkdir(parents=True)
        shutil.copytree(self.pattern / "data", made / "data")
        own(made, uid, 0o700)
        return made

    def fingerprint(self) -> Dict[str, str]:
        """Of everything of the victims'."""
        found: Dict[str, str] = {}
        for top in (self.victim, self.admin):
            for path in (top, *sorted(top.rglob("*"))):
                status = path.lstat()
                digest = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
                facts = (stat.filemode(status.st_mode), status.st_uid, status.st_gid, status.st_nlink, digest)
                found[str(path)] = " ".join(map(str, facts))
        return found

    def leaks(self) -> Iterator[str]:
        """Files that a hostile user can read, and that have the canary."""
        for top in (self.fsx, self.archive):
            for path, status, text in _files(top, self.victim):
                if text and (status.st_uid in HOSTILE or status.st_mode & 0o004):
                    yield path

    def brought(self, place: Path) -> Iterator[str]:
        """Files with the canary at the place of who runs the command: of a hostile user's directory there is none that
        this user may read, so it was read for them."""
        for path, _, text in _files(place, None):
            if text:
                yield path


def _files(top: Path, victim: Optional[Path]) -> Iterator[Tuple[str, os.stat_result, bool]]:
    """(path, status, whether it has the canary) of each regular file that is not below the victim's directory."""
    for folder, names, files in os.walk(top):
        names[:] = [name for name in names if Path(folder, name) != victim]
        for name in files:
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    status = os.fstat(handle)
                    if stat.S_ISREG(status.st_mode):
                        yield path, status, CANARY in os.read(handle, _LARGEST)
                finally:
                    os.close(handle)


def own(folder: Path, uid: int, mode: int) -> None:
    """Everything in it becomes that user's."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)
        path.chmod(mode if path.is_dir() else mode & 0o666)


@contextlib.contextmanager
def ground() -> Iterator[Ground]:
    with place(0o755) as top:
        yield Ground(top)
