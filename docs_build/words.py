"""What the code names in one word, in a sentence each. A name without a sentence ends the build with the name.

The lists of names come from the code (model/states.py, checkpoint/handle.py, job/outcome.py, every HPK_ variable), so
that nothing new stays unexplained and nothing that is gone stays explained.
"""

from __future__ import annotations

import re
from typing import Iterable, Mapping

from docs_build.findings import PACKAGE
from hyperpod_kit.checkpoint import handle
from hyperpod_kit.job import outcome
from hyperpod_kit.model import states as mount_states

EXIT_CODES = {
    "0": "ok",
    "1": "something is wrong: with the configuration, the cluster, a mount, a checkpoint",
    "2": "the command line cannot mean that (`checkpoint verify`: no checkpoint is valid)",
    "3": "could not check: AWS, a node or a file does not answer, or time is up",
    "75": "`job run`: saved, and wants to run again",
    "86": "`job run`: gave up; the job is held and wants a person",
    "130": "stopped by Ctrl-C, or by a no where something was asked",
    "141": "the reader of a pipe has gone (`… | head`)",
}

STATES_INTRODUCTION = (
    "What a mount, a save and an attempt of a job can be. What is done about each: "
    "[health of the mounts](../health.md), [checkpoints](../checkpoints.md), "
    "[jobs that come back](../auto-resume.md)."
)

_MOUNTS = {
    "ok": "it answers, and it is the mount that was asked for",
    "absent": "nothing is mounted at the path",
    "wrong_target": "something else is mounted there",
    "stale": "it is listed, and its daemon or its handle is gone",
    "hung": "it does not answer within the deadline",
    "readonly": "read-only, against the configuration",
    "full": "no blocks or no inodes are left",
    "slow": "it serves, and takes more than half of the deadline",
    "unknown": "it cannot be told",
}
_SAVES = {
    "copying": "the copy into memory runs beside training",
    "captured": "this rank's copy is whole",
    "sealed": "every rank's copy is whole, and every byte of it has its digest; it survives the trainer",
    "local": "every rank's copy is on its node's own disk too",
    "durable": "committed on shared storage",
    "skipped": "not begun: every slot was in use",
    "dropped": "another rank does not have this save, or a newer one took its place",
    "failed": "storage refused it; `handle.reason` says how",
}
_ATTEMPTS = {
    "done": "it finished",
    "again": "it saved and wants to run again (exit 75)",
    "preempted": "USR1 came before its end: the time limit, or preemption",
    "cancelled": "Slurm ended it: scancel, or a limit",
    "requeued": "Slurm ended it and put the job back into the queue, and no node of it is known to be lost",
    "unknown": "it was ended, and neither Slurm nor a node says why",
    "node_lost": "a node does not answer, or Slurm ended the run because of one",
    "storage": "the checkpoint root did not answer",
    "stall": "nothing moved for `--stall` seconds, and it was ended",
    "crash": "a rank failed",
}

VARIABLES_INTRODUCTION = "An option on the command line counts more than a variable."

_ADMIN = {
    "HPK_SSH_USER": "`--ssh-user` of every command that asks nodes",
    "HPK_SSH_KEY": "`--ssh-key`",
    "HPK_SSH_PORT": "`--ssh-port`",
    "HPK_SSH_PROXY": "`--ssh-proxy`",
    "HPK_KNOWN_HOSTS": "`--known-hosts`",
    "HPK_POLL_INTERVAL": "`--interval`: seconds between two polls of AWS",
    "HPK_CACHE": "where the rehearsal keeps its node image; default `~/.cache/hyperpod-kit`",
    "HPK_REHEARSAL_STATE": "where rehearsals keep their state; default `/var/lib/hyperpod-kit-rehearsal`",
}
_JOB = {
    "HPK_CHECKPOINT_ROOT": "the root of `job run`; for a bare `srun`, set it in the batch script",
    "HPK_RESUME_FROM": "the checkpoint that was chosen, below the root; `none` when there is none",
    "HPK_RESUME_STEP": "its step",
    "HPK_RESUME_KIND": "who wrote it",
    "HPK_RESUME_MEMORY": "`0`: what memory and local disks hold must not be used",
    "HPK_ATTEMPT": "the attempt's name, unique: job, its life, restart, attempt",
    "HPK_PROGRESS": "a file to write the last completed step to",
    "HPK_STATE": "`.hpk` below the root: the job's ledger",
    "HPK_AUTO_RESUME": "`1`: `sbatch --auto-resume=1` was given",
    "HPK_DIGEST": "`xxh3` or `blake2b`, for a run's first save; default: the fastest that every rank has",
    "HPK_SHM_DIR": "a directory that stands for `/dev/shm`; slots lie in it as it is where it is the user's alone",
    "HPK_AGENT_LINGER": "seconds that an agent stays after its trainer has died",
    "HPK_AGENT_SILENCE": "seconds of silence after which an agent is ended and another one takes its place",
    "HPK_AGENT_STALL": "seconds without a byte moved, with work to do, after which the next save raises",
    "HPK_LIFELINE": "address that a rank's wrapper keeps a connection to; set by `job run`",
    "HPK_ATTEMPT_KEY": "what an attempt's processes prove to each other that they are of it by; set by `job run`",
}
_NODE = {
    "HPK_MODE": "the lifecycle mode, where a script is started by hand",
    "HPK_NODE_ADDRESS": "the address by which the node is found in `resource_config.json`, instead of its own",
    "HPK_ROOT": "a directory that stands for `/`: rehearsals without root",
}
_INTERNAL = re.compile(r"HPK_(FAILPOINT|STANDIN)")
"""What only tests set."""


def states() -> dict[str, dict[str, str]]:
    """Heading -> state -> sentence. Raises KeyError."""
    return {
        "Mounts": _in_order(map(str, mount_states.STATES), _MOUNTS),
        "Saves": _in_order(handle.STATES, _SAVES),
        "Attempts of a job": _in_order(outcome.CLASSES, _ATTEMPTS),
    }


def variables() -> dict[str, dict[str, str]]:
    """Heading -> variable -> sentence. Raises KeyError."""
    read = {
        name
        for path in sorted(PACKAGE.rglob("*.py"))
        if "_bundle" not in path.parts
        for name in re.findall(r"\bHPK_[A-Z_]+[A-Z]\b", path.read_text())
        if not _INTERNAL.match(name)
    }
    known = {"On the admin's machine": _ADMIN, "In a job": _JOB, "On a node": _NODE}
    every = {name: text for table in known.values() for name, text in table.items()}
    _in_order(sorted(read | {"HPK_AUTO_RESUME", "HPK_MODE"}), every)
    return known


def _in_order(names: Iterable[str], sentences: Mapping[str, str]) -> dict[str, str]:
    wanted = list(names)
    new, gone = sorted(set(wanted) - set(sentences)), sorted(set(sentences) - set(wanted))
    if new or gone:
        raise KeyError(f"docs_build/words.py: no sentence for {new or '-'}; not in the code any more: {gone or '-'}")
    return {name: sentences[name] for name in wanted}
