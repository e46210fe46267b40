"""The table of the threat model: as whom each command acts, what it opens that belongs to others, how long it may wait,
what it starts and where it connects.

The commands are the command line's own, and the numbers are those of the code. `python -m docs_build.trust` writes the
table into docs/threat-model.md; a test compares it, and tests/hostile/test_trust_by_trace.py compares it with what
strace sees.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Dict, FrozenSet, NamedTuple, Optional, Tuple

from docs_build.commands import Command, all_commands
from hyperpod_kit.data.reading.bounded import REPLY_SECONDS as DATA_ANSWER
from hyperpod_kit.job.goodput import command
from hyperpod_kit.storage.preload import hsm
from hyperpod_kit.storage.quota import backends
from hyperpod_kit.storage.usage import walk
from hyperpod_kit.untrusted import owner

PAGE = Path(__file__).parents[1] / "docs" / "threat-model.md"
BEGIN, END = "<!-- table of commands: python -m docs_build.trust -->", "<!-- end of the table of commands -->"


OF_A_CHECKOUT = frozenset({"git"})
"""What the package asks for its version where it lies in a checkout, and only about that."""


class Trust(NamedTuple):
    """`acts`: as whom; `opens`: of others; `waits`: how long for what may not answer; `starts`: which programs, each in
    backticks; `connects`: to whom."""

    acts: str
    opens: str
    waits: str
    starts: str = "nothing"
    connects: str = "nobody"

    @property
    def programs(self) -> FrozenSet[str]:
        """Names of the programs that it may start."""
        return frozenset(re.findall(r"`([^`]+)`", self.starts))


CALLER = "who calls it"
AS_OWNER = "who calls it; called by root, the owner of the run, in a child"
ON_PATHS = f"{owner.SILENCE_SECONDS:.0f} s without progress and {owner.LONGEST / 3600:.0f} hours in all"
FILE_SYSTEM = "as long as the file system; Ctrl-C ends it"
AWS = "the deadlines of each call to AWS"
DATA = f"{DATA_ANSWER:.0f} s for each call to a mount (`--answer`)"
NOTHING = "nothing"
S3 = "S3, for a place that is there"
SLURM = "`scontrol`, `squeue`, `sacct`, `sbatch`, `srun`, `scancel`"

OWN = Trust(CALLER, NOTHING, "it does not wait")
CONFIG = Trust(CALLER, "the configuration that it is given", FILE_SYSTEM)
CLOUD = Trust(
    CALLER,
    "the configuration; what AWS and nodes answer is bounded and cleaned",
    AWS,
    "`ssh`, `aws`",
    "AWS, and nodes by ssh or Session Manager",
)
RUN = Trust(AS_OWNER, "the run's directory", ON_PATHS, connects=S3)
TO_CALLER = Trust(f"{CALLER}; called by root, the owner reads the run", "the run's directory", ON_PATHS, connects=S3)
FOREIGN = Trust(CALLER, "a checkpoint of another program, of which nothing is run", ON_PATHS, connects=S3)
IMPORTED = FOREIGN._replace(acts=f"{CALLER}; called by root, the owner reads what is imported")
LIMITS = Trust(
    "root, on a descriptor of the directory that was looked at",
    "the directory itself; no link of another user's is followed, and no file system that a user serves is asked",
    f"the deadline of each command of the file system's tools, {backends.TIMEOUT / 60:.0f} minutes at most",
    "`lfs`, `btrfs`",
    "the mail server, SNS and CloudWatch of its configuration",
)
REQUESTS = Trust(
    "who calls it, root for an answer; a limit is set on a descriptor",
    "requests in the box, of at most 8 KiB, each held before it is read",
    LIMITS.waits,
    LIMITS.starts,
)
READS_DATA = Trust(CALLER, "the files of SRC, each bounded before it is decoded", DATA, connects=S3)
SOURCES = f"{CALLER}; called by root, the owner reads SRC"
INDEXED = READS_DATA._replace(acts=f"{CALLER}; called by root, the owner of the index reads its sources")
BRINGS_DATA = Trust(SOURCES, "SRC, and DST by descriptors", FILE_SYSTEM)
JOB = Trust(
    "who calls it, the user of the job",
    "records of the job's own user in its root",
    "the deadlines of each command of Slurm's",
    SLURM,
    "processes of the job on its nodes",
)
REHEARSAL = Trust(
    "root",
    "nothing that anybody but root wrote",
    "the deadlines of docs/testing.md",
    "programs of the machine's",
    "its own machines",
)
NODE = Trust(
    "root of the node; `flush` and what it calls, each user in a child",
    "names in /dev/shm and on mounts, held and not entered; words of Slurm, field by field",
    "a deadline for each program and each probe",
    "programs of the node's, by their absolute paths",
    "what the configuration mounts, AWS, neighbours",
)

COMMANDS: Dict[str, Trust] = {
    "init": Trust(CALLER, NOTHING, FILE_SYSTEM),
    "config show": CONFIG,
    "config schema": OWN,
    "validate": Trust(
        CALLER,
        "the configuration that it is given",
        f"{FILE_SYSTEM}; with `--aws` {AWS}",
        connects="AWS, with `--aws`",
    ),
    "policy": CONFIG,
    "infra template": CONFIG,
    "describe-package": Trust(CALLER, "the .deb files that it is given", FILE_SYSTEM),
    "render": CONFIG,
    "users policy": CONFIG,
    "job run": JOB,
    "job status": JOB._replace(waits=f"{ON_PATHS}; {JOB.waits}"),
    "job goodput": Trust(
        "who calls it; called by root, the owner of each root that is named, or who has noted it, in a child",
        "records in the roots that it is given, and what sacct answers",
        f"{ON_PATHS}, called by root {command.PATIENCE.longest / 60:.0f} minutes for a root; {JOB.waits}",
        "`squeue`, `sacct`, `scontrol`",
    ),
    "job lint": Trust(CALLER, "the batch scripts and the configuration that it is given", FILE_SYSTEM),
    "job doctor": JOB,
    "job sweep": Trust(
        "SlurmUser",
        "words of every job, field by field behind random marks; whole lines of slurmctld's log",
        JOB.waits,
        SLURM,
    ),
    "job submit": JOB,
    "job rewind": JOB,
    "job prove": FOREIGN,
    "job task-prolog": JOB,
    "checkpoint ls": RUN,
    "checkpoint show": RUN,
    "checkpoint get": TO_CALLER,
    "checkpoint verify": RUN,
    "checkpoint repair": RUN,
    "checkpoint prune": RUN,
    "checkpoint pin": RUN,
    "checkpoint unpin": RUN,
    "checkpoint flush": Trust(
        "called by root, each user in a child",
        "captures in /dev/shm of the user's own",
        "the job's `--flush-wait`",
        connects=S3,
    ),
    "checkpoint bench": OWN,
    "checkpoint diff": TO_CALLER,
    "checkpoint export": TO_CALLER,
    "checkpoint import": IMPORTED,
    "checkpoint torture": OWN,
    "fan-out": Trust(
        SOURCES,
        "the files of SRC; rows of the job's other nodes",
        "the deadlines of its connections",
        "`srun`",
        "its own processes on the job's nodes",
    ),
    "data index": READS_DATA._replace(acts=SOURCES),
    "data show": INDEXED,
    "data verify": INDEXED,
    "data verify-ledger": Trust(CALLER, "the ledger", FILE_SYSTEM),
    "data tokenize": READS_DATA._replace(acts=SOURCES),
    "data stage": BRINGS_DATA._replace(waits=DATA),
    "data merge": BRINGS_DATA,
    "data split": BRINGS_DATA,
    "data bench": READS_DATA._replace(acts=SOURCES, waits=FILE_SYSTEM),
    "data make-corpus": OWN,
    "storage plan": OWN,
    "storage bench": Trust(CALLER, "a directory of its own on the mount", "a deadline for each measurement", "`fio`"),
    "storage usage": Trust(
        "who calls it; called by root, the owner of each directory",
        "names and sizes below PATH; RUN.json and manifests as the owner of the run",
        f"{walk.HANG_SECONDS:.0f} s for a directory that does not answer, which stays uncounted; "
        f"{walk.MAX_HANGS} such end it",
        "`python`, which looks at files",
        "S3 for a bucket; with `--alerts` the mail server and SNS",
    ),
    "storage quota set": LIMITS,
    "storage quota show": LIMITS,
    "storage quota check": LIMITS,
    "storage quota stop": CLOUD,
    "storage quota resume": CLOUD,
    "storage request": REQUESTS,
    "storage requests open": REQUESTS,
    "storage requests list": REQUESTS,
    "storage requests approve": REQUESTS,
    "storage requests deny": REQUESTS,
    "storage tier": RUN._replace(waits=f"{ON_PATHS}, called by root; else as long as the file system", starts="`lfs`"),
    "storage preload": Trust(
        "who calls it; called by root, the owner of each directory that is listed and of each file that is read",
        "every file below PATH; no file system that a user serves is entered",
        f"{2 * hsm.TIMEOUT:.0f} s without progress for the files of one user; `--patience` for Lustre",
        "`lfs`; with `--job` `sbatch`, `scancel`",
    ),
    "storage audit import": Trust(CALLER, "logs, a line of at most 1 MiB at a time", FILE_SYSTEM),
    "storage audit jobs": Trust(CALLER, "what sacct answers", JOB.waits, "`sacct`"),
    "storage audit query": Trust(CALLER, "the ledger", FILE_SYSTEM),
    "storage audit verify": Trust(
        CALLER, "the ledger", FILE_SYSTEM, connects="with `--alerts` the mail server and SNS"
    ),
    "storage audit retain": Trust(CALLER, "the ledger", FILE_SYSTEM),
    "explain": OWN,
    "completion": OWN,
}
CLOUDS = frozenset(
    {
        "diff",
        "upload",
        "create-cluster",
        "update-cluster",
        "update-software",
        "rollout start",
        "rollout resume",
        "rollout undo",
        "rollout pause",
        "rollout status",
        "wait",
        "describe-cluster",
        "list-clusters",
        "list-cluster-nodes",
        "replace-node",
        "reboot-node",
        "delete-node",
        "health-check",
        "operations",
        "events",
        "connect",
        "delete-cluster",
        "validate-mounts",
        "fleet",
        "diagnose",
        "support-bundle",
        "users apply",
    }
)
PREFIXES: Dict[str, Trust] = {"rehearse": REHEARSAL, "node": NODE}


def trust_of(words: Tuple[str, ...]) -> Optional[Trust]:
    """The row of a command; None where nobody has thought about it."""
    name = " ".join(words)
    if name in CLOUDS:
        return CLOUD
    return COMMANDS.get(name) or PREFIXES.get(words[0])


def leaves(commands: list[Command]) -> list[Command]:
    """Commands that run, and no groups."""
    return [one for one in commands if not one.children]


def table(commands: list[Command]) -> str:
    """Commands with the same row share one. Raises KeyError for a command without a row."""
    rows: Dict[Trust, list[str]] = {}
    for one in leaves(commands):
        row = trust_of(one.words)
        if row is None:
            raise KeyError(f"docs_build/trust.py has no row for {one.name}")
        rows.setdefault(row, []).append(f"`{one.name}`")
    lines = ["| command | acts as | opens of others | waits at most | starts | connects to |", "|" + " --- |" * 6]
    lines += [f"| {', '.join(names)} | {' | '.join(row)} |" for row, names in rows.items()]
    return "\n".join(lines) + "\n"


def page(text: str, commands: list[Command]) -> str:
    """The page with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(commands)}\n{END}{after}"


def main() -> int:
    PAGE.write_text(page(PAGE.read_text(), all_commands()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
