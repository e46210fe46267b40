"""Which commands are run against hostile users, with which words; of each other one, why not.

The list of commands is the command line's own: `test_every_command_has_an_entry` finds one that is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Tuple, Union

Words = Tuple[str, ...]


@dataclass(frozen=True)
class Attacked:
    """Words in which {mine} is a hostile user's directory, {out} one of who runs it, {archive} one of root's that
    everybody may read, {attempt} a checkpoint, {request} the id of what its owner asks an admin for; `alternatives`:
    further lines. `by`: who runs it. `waits`: whether it promises an end where a user's file system does not answer."""

    words: str
    by: str = "root"
    waits: bool = False
    alternatives: Words = ()


@dataclass(frozen=True)
class NotAttacked:
    """Why it is not run here."""

    reason: str


Entry = Union[Attacked, NotAttacked]
CLOUD = NotAttacked("it asks AWS or the cluster, and opens the admin's own configuration alone")
MACHINE = NotAttacked("it changes the machine that the tests run on; tests/hostile attacks its parts one by one")
REHEARSAL = NotAttacked("it is of a rehearsal of the admin's own: tests/hostile/test_rehearsal_state.py")
SLURM = NotAttacked(
    "it needs a job of Slurm's: tests/hostile/test_words_in_slurm.py, test_decisions.py, test_lifeline.py"
)
OWN = NotAttacked("it opens nothing: it prints, or makes what is in memory alone")
GROUP = NotAttacked("a group of commands, which runs none")

RUN, CONFIG = "{mine}/run", "{mine}/config.json"

ENTRIES: Dict[str, Entry] = {
    "init": Attacked("init {mine}/made.json", "user"),
    "config show": Attacked("config show {mine}/config.json"),
    "config schema": OWN,
    "validate": Attacked("validate {mine}/config.json"),
    "policy": Attacked("policy {mine}/config.json"),
    "infra template": Attacked("infra template {mine}/config.json"),
    "describe-package": Attacked("describe-package {mine}/package.deb"),
    "render": Attacked("render {mine}/config.json --out {out}/bundle"),
    "diff": CLOUD,
    "upload": CLOUD,
    "create-cluster": CLOUD,
    "update-cluster": CLOUD,
    "update-software": CLOUD,
    "wait": CLOUD,
    "describe-cluster": CLOUD,
    "list-clusters": CLOUD,
    "list-cluster-nodes": CLOUD,
    "replace-node": CLOUD,
    "reboot-node": CLOUD,
    "delete-node": CLOUD,
    "health-check": CLOUD,
    "operations": CLOUD,
    "events": CLOUD,
    "connect": CLOUD,
    "delete-cluster": CLOUD,
    "validate-mounts": CLOUD,
    "diagnose": CLOUD,
    "rollout start": CLOUD,
    "rollout resume": CLOUD,
    "rollout pause": CLOUD,
    "rollout undo": CLOUD,
    "rollout status": CLOUD,
    "fleet": CLOUD,
    "support-bundle": CLOUD,
    "users apply": CLOUD,
    "users policy": Attacked("users policy {mine}/config.json"),
    "job run": SLURM,
    "job status": Attacked(
        "job status --root {mine}/run",
        "user",
        alternatives=(
            "job status --root {mine}/run --tensorboard {mine}/scalars",
            "job status --root {mine}/run --html {out}/page.html --tensorboard {out}/scalars",
        ),
    ),
    "job lint": Attacked("job lint {mine}/train.sbatch", "user"),
    "job doctor": SLURM,
    "job sweep": SLURM,
    "job submit": SLURM,
    "job goodput": Attacked(
        "job goodput --root {mine}/run", "user", alternatives=("job goodput --root {mine}/run --json",)
    ),
    "job rewind": Attacked("job rewind {mine}/run {attempt}", "user"),
    "job prove": Attacked("job prove {mine}/foreign", "user"),
    "job task-prolog": SLURM,
    "checkpoint ls": Attacked("checkpoint ls {mine}/run", waits=True),
    "checkpoint show": Attacked("checkpoint show {mine}/run", waits=True),
    "checkpoint get": Attacked("checkpoint get {mine}/run w --out {out}/w.npy", waits=True),
    "checkpoint verify": Attacked("checkpoint verify {mine}/run", waits=True),
    "checkpoint repair": Attacked("checkpoint repair {mine}/run", waits=True),
    "checkpoint prune": Attacked("checkpoint prune {mine}/run --latest 1", waits=True),
    "checkpoint pin": Attacked("checkpoint pin {mine}/run {attempt}", waits=True),
    "checkpoint unpin": Attacked("checkpoint unpin {mine}/run {attempt}", waits=True),
    "checkpoint flush": NotAttacked("it takes captures in /dev/shm: tests/hostile/test_flush_as_root.py"),
    "checkpoint bench": OWN,
    "checkpoint diff": Attacked(
        "checkpoint diff {mine}/run {mine}/run/{attempt}",
        waits=True,
        alternatives=(
            "checkpoint diff {mine}/run/{attempt} {mine}/run --json",
            "checkpoint diff {mine}/run {mine}/other",
        ),
    ),
    "checkpoint export": Attacked(
        "checkpoint export {mine}/run --to safetensors --out {out}/exported",
        waits=True,
        alternatives=("checkpoint export {mine}/run --to torch --out {out}/exported --attempt {attempt}",),
    ),
    "checkpoint import": Attacked(
        "checkpoint import {mine}/w.safetensors --from safetensors --out {out}/new", waits=True
    ),
    "checkpoint torture": OWN,
    "fan-out": NotAttacked("it needs a job of Slurm's: tests/hostile/test_directories_of_others.py"),
    "data index": Attacked("data index {mine}/data --out {out}/index --check --on-bad skip"),
    "data show": Attacked("data show {mine}/index"),
    "data verify": Attacked("data verify {mine}/index --bytes"),
    "data verify-ledger": Attacked("data verify-ledger {mine}/ledger", "user"),
    "data tokenize": Attacked("data tokenize --tokenizer {mine}/tokenizer.json --out {out}/t {mine}/data"),
    "data stage": Attacked(
        "data stage {mine}/data {out}/staged --wait 5",
        alternatives=("data stage {own}/data {mine}/data --wait 5",),
    ),
    "data merge": Attacked(
        "data merge {mine}/data {out}/merged", alternatives=("data merge {own}/data {mine}/merged",)
    ),
    "data split": Attacked("data split {mine}/merged-data {out}/split"),
    "data bench": Attacked("data bench {mine}/data --samples 20 --workers 0 --passes 1"),
    "data make-corpus": OWN,
    "storage plan": OWN,
    "storage bench": NotAttacked(
        "it measures a mount for minutes, in a directory of its own: tests/unit/storage/bench"
    ),
    "storage usage": Attacked(
        "storage usage {mine} --state {out}/state --history {out}/history",
        waits=True,
        alternatives=(
            "storage usage {mine} --state {out}/state --history {mine}/history --html {out}/page.html",
            "storage usage {mine} --state {out}/state --alerts {mine}/quotas.json --alerts-state {out}/alerts",
        ),
    ),
    "storage quota set": Attacked("storage quota set {mine} --bytes 1GiB", waits=True),
    "storage quota show": Attacked("storage quota show {mine} {own}", waits=True),
    "storage quota check": Attacked("storage quota check {mine}/quotas.json --state {out}/quota.json"),
    "storage quota stop": CLOUD,
    "storage quota resume": CLOUD,
    "storage request": Attacked("storage request {mine} --bytes 1TiB", "user"),
    "storage requests open": Attacked("storage requests open {mine}", alternatives=("storage requests open {fsx}",)),
    "storage requests list": Attacked(
        "storage requests list {fsx} --all", alternatives=("storage requests list {mine}",)
    ),
    "storage requests approve": Attacked("storage requests approve {fsx} {request}"),
    "storage requests deny": Attacked("storage requests deny {fsx} {request} --why no"),
    "storage tier": Attacked(
        "storage tier {mine}/run --older-than 1s --keep 1 --to {archive}",
        waits=True,
        alternatives=("storage tier {mine}/run --older-than 1s --keep 1 --delete",),
    ),
    "storage preload": Attacked("storage preload {mine}", waits=True),
    "storage audit import": Attacked("storage audit import node {mine}/audit.log --ledger {out}/audit.sqlite"),
    "storage audit jobs": SLURM,
    "storage audit query": Attacked("storage audit query --ledger {mine}/audit.sqlite"),
    "storage audit verify": Attacked("storage audit verify --ledger {mine}/audit.sqlite"),
    "storage audit retain": Attacked("storage audit retain --ledger {mine}/audit.sqlite --older-than 1d"),
    "explain": OWN,
    "completion": OWN,
}
PREFIXES: Dict[str, Entry] = {"rehearse": REHEARSAL, "node": MACHINE}


def entry_of(words: Words) -> Entry | None:
    return ENTRIES.get(" ".join(words)) or PREFIXES.get(words[0])


ATTACKED = {name: entry for name, entry in ENTRIES.items() if isinstance(entry, Attacked)}
