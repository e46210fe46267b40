"""Names and places under a checkpoint root. Nothing here touches the disk.

<root>/
  RUN.json                                who writes here; written once
  epoch-000002.json                       one per start of the run; O_EXCL makes the epoch unique
  seq-000043.step-0000000110.e2-7f3a9c/   one attempt to commit a checkpoint; never reused
    shard-00000.safetensors ...           one per rank of the run that saved it
    extra.json                            everything that is not a tensor
    index.bin                             which piece of which tensor lies where
    MANIFEST.json                         the commit: written last
  seq-....BAD                             tombstone: this attempt was found damaged, and how
  LATEST                                  hint; may be old, torn or absent
  leases/<attempt>.<until>-<id>.json      somebody reads it until then (Unix seconds)
  pins/<attempt>.json                     never deleted
  rewinds/000001.json                     the run went back on purpose, and what it left thereby
  rewinds/000002.fresh.json               the run began anew at step 0 on purpose
  proofs/<attempt>.json                   every byte of it was read from storage once, and was as it was committed
  flushes/<host>-<id>.json                a node is bringing here what dead trainers left in its memory
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

FORMAT = "hpk-ckpt/1"
RUN_FORMAT = "hpk-run/1"
EXTRA_FORMAT = "hpk-extra/1"
EXTRA_FORMAT_OF_STAGES = "hpk-extra/2"
"""Where not all ranks hold the same names; everything else is written as before."""
EXTRA_FORMAT_OF_SHARDS = "hpk-extra/3"
"""Where ranks' own trees lie in their shards."""
EXTRA_FORMAT_OF_TYPED_RECORDS = "hpk-extra/4"
"""Its trees have records that readers of builds before 0.1.0 do not know; else as any of the others."""

RUN_FILE = "RUN.json"
MANIFEST_FILE = "MANIFEST.json"
EXTRA_FILE = "extra.json"
INDEX_FILE = "index.bin"
LATEST_FILE = "LATEST"
EPOCHS_END = "epoch-~"
"""Behind the names of all epoch files."""
LEASES = "leases"
PINS = "pins"
PROOFS = "proofs"
ROLLBACKS = "rewinds"
FLUSHES = "flushes"
JOBS = ".hpk"
"""What jobs have recorded of themselves: ledger, verdicts, decisions; or where those are (`JOBS_ELSEWHERE`)."""
JOBS_ELSEWHERE = f"{JOBS}/state.json"
JOBS_ELSEWHERE_FORMAT = "hpk-state/1"

_ATTEMPT = re.compile(r"seq-([0-9]{6,18})\.step-([0-9]{10,18})\.e([0-9]{1,18})-([0-9a-f]{4,16})")
_ROLLBACK = re.compile(r"([0-9]{6,18})(?:\.fresh)?\.json")
_EPOCH = re.compile(r"epoch-([0-9]{6,18})\.json")


class CheckpointId(NamedTuple):
    """An attempt directory's name, parsed. `seq` counts saves, `step` is the trainer's own number."""

    seq: int
    step: int
    epoch: int
    nonce: str

    def __str__(self) -> str:
        return f"seq-{self.seq:06d}.step-{self.step:010d}.e{self.epoch}-{self.nonce}"


def parse_checkpoint_id(name: str) -> Optional[CheckpointId]:
    """The parts of an attempt directory's name; None when it is not one."""
    match = _ATTEMPT.fullmatch(name)
    if match is None:
        return None
    parsed = CheckpointId(int(match.group(1)), int(match.group(2)), int(match.group(3)), match.group(4))
    # Only the canonical spelling is one, so that one checkpoint never has two names.
    if str(parsed) == name:
        return parsed
    return None


def rollback_file(number: int) -> str:
    return f"{number:06d}.json"


def fresh_start_file(number: int) -> str:
    return f"{number:06d}.fresh.json"


def rollback_number(name: str) -> Optional[int]:
    """The number of a record of a step back, also of one to nothing; None when it is none."""
    match = _ROLLBACK.fullmatch(name)
    if match is None:
        return None
    number = int(match.group(1))
    if name in (rollback_file(number), fresh_start_file(number)):
        return number
    return None


def name_sorting_before_seq(seq: int) -> str:
    """Return a name that sorts before all checkpoint ids of this seq and later ones, and after those of earlier
    ones."""
    return f"seq-{seq:06d}"


LARGEST_REPORT = 1 << 30
"""Bytes: a report carries all that a rank has besides its tensors."""

LARGEST_SMALL = 1 << 30
"""Bytes of extra.json and of index.bin, which are read whole."""

_FILES = re.compile(
    r"MANIFEST\.json|extra\.json|index\.bin|shard-[0-9]{5,}\.safetensors|report-[0-9]{5,}\.json|"
    r"text-[0-9a-f]{1,128}\.json|\.hpk-probe-[0-9a-f]+"
)


def is_kit_checkpoint_file(name: str) -> bool:
    """Return whether the kit gives this name to files of a checkpoint. Nothing else in its directory is the
    kit's to delete."""
    return _FILES.fullmatch(name) is not None


def is_root_entry(name: str) -> bool:
    """Whether a root has such a name, as a store lists it, directly below itself."""
    plain = name.rstrip("/")
    if plain in (RUN_FILE, LATEST_FILE, LEASES, PINS, PROOFS, ROLLBACKS, FLUSHES, JOBS):
        return True
    return (
        parse_checkpoint_id(plain) is not None or parse_epoch(plain) is not None or parse_tombstone(plain) is not None
    )


def shard_file(rank: int) -> str:
    return f"shard-{rank:05d}.safetensors"


def report_file(rank: int) -> str:
    """Only in an attempt to which several nodes handed in: what the manifest is made of."""
    return f"report-{rank:05d}.json"


def report_text_file(digest: str) -> str:
    """Beside the reports: a text that several of them name by its digest."""
    return f"text-{digest.partition(':')[2]}.json"


def tombstone_file(checkpoint_id: str) -> str:
    return f"{checkpoint_id}.BAD"


def parse_tombstone(name: str) -> Optional[str]:
    """The attempt that a tombstone is for; None when the name is no tombstone's."""
    if name.endswith(".BAD") and parse_checkpoint_id(name[: -len(".BAD")]):
        return name[: -len(".BAD")]
    return None


def epoch_file(epoch: int) -> str:
    return f"epoch-{epoch:06d}.json"


def parse_epoch(name: str) -> Optional[int]:
    match = _EPOCH.fullmatch(name)
    if match:
        return int(match.group(1))
    return None
