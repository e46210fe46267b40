"""`python -m tests.unit.cli.absent_calls ACT PLACE`: runs each line of the table, and prints its end as a JSON line.

What all commands need is imported once; each line then runs in a child, whose imports and environment are its own.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from docs_build.commands import all_commands
from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.cli.table import SECTIONS
from hyperpod_kit.data import cli as data_cli
from hyperpod_kit.environment import HPK_ROOT, HPK_SHM_DIR
from hyperpod_kit.job import cli as job_cli
from hyperpod_kit.node import cli as node_cli
from tests.unit.cli.absence_table import ENTRIES, NEVER_BARE, Absences

ROOT = Path(__file__).parents[3]
NODE = "node"
"""These are the program of a node's, which has its own command line."""
BARE = "bare"
"""No argument at all, where there is no shared memory either."""
ACTS = ("path", "extra", "credentials", "endpoint", BARE)
OPTIONAL = (
    *data_cli._OPTIONAL_PACKAGES,
    "boto3",
    "botocore",
    "jinja2",
    "paramiko",
    "safetensors",
    "transformers",
    "xxhash",
    "yaml",
)
"""Packages of the extras, which the act `extra` takes away."""
UNANSWERED = "http://127.0.0.1:9"
LONGEST = 1500


class WithoutExtras(importlib.abc.MetaPathFinder):
    """As if none of OPTIONAL were installed."""

    def find_spec(self, name: str, path: Optional[Sequence[str]], target: Any = None) -> None:
        if name.partition(".")[0] in OPTIONAL:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def lines_of(act: str) -> Iterator[Tuple[str, str]]:
    """(command, words behind it) of each line that the act runs."""
    if act == BARE:
        names = [command.name for command in all_commands()] + [f"job {verb}" for verb in job_cli.UNLISTED]
        yield from ((name, "") for name in names if name not in NEVER_BARE)
        return
    for command, entry in ENTRIES.items():
        yield from ((command, line) for line in _lines(act, entry))


def _lines(act: str, entry: Absences) -> Tuple[str, ...]:
    if act == "path":
        return entry.paths
    if act == "extra":
        return (*entry.extras, *entry.asks)
    if act == "credentials":
        return (*entry.signs, *entry.asks)
    return entry.asks


def main() -> int:
    act, place = sys.argv[1], Path(sys.argv[2])
    _environment(act, place)
    if act == "extra":
        sys.meta_path.insert(0, WithoutExtras())
    _import_commands()
    for number, (command, line) in enumerate(lines_of(act)):
        ground = _ground(place / str(number))
        words = [*command.split(), *(word.format(**ground) for word in line.split())]
        code, printed = _end_of(words, place)
        print(json.dumps({"command": command, "line": line, "code": code, "printed": printed}), flush=True)
    return 0


def _environment(act: str, place: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "SLURM_")):
            del os.environ[name]
    os.environ.update(
        {HPK_ROOT: str(place / "none")},
        HOME=str(place),
        AWS_EC2_METADATA_DISABLED="true",
        AWS_MAX_ATTEMPTS="1",
        AWS_CONFIG_FILE=str(place / "none"),
        AWS_SHARED_CREDENTIALS_FILE=str(place / "none"),
        SLURM_CONF=str(_slurm_conf(place)),
    )
    if act == BARE:
        os.environ[HPK_SHM_DIR] = str(place / "none")
    if act == "endpoint":
        os.environ.update(AWS_ENDPOINT_URL=UNANSWERED, AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x")


def _slurm_conf(place: Path) -> Path:
    """One that names no cluster, as on a machine of none. Each program of Slurm waits a minute for one that is not
    there."""
    empty = place / "slurm.conf"
    empty.touch()
    return empty


def _import_commands() -> None:
    places = [entry.import_path for section in SECTIONS.values() for entry in section.values()]
    modules = [place.partition(":")[0] for place in places]
    others = (
        "hyperpod_kit.checkpoint.convert.export_command",
        "hyperpod_kit.checkpoint.convert.import_command",
        "hyperpod_kit.data.commands.index",
        "hyperpod_lab.data_bench.command",
        "hyperpod_kit.aws.s3",
    )
    for module in (*modules, *others):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def _ground(place: Path) -> Dict[str, Path]:
    """What a line's words name; {gone} alone is not there."""
    for name in ("out", "root"):
        (place / name).mkdir(parents=True)
    config, script, file = place / "c.json", place / "train.sbatch", place / "file.jsonl"
    shutil.copy(ROOT / "provisioning_parameters.example.json", config)
    values = json.loads(config.read_text())
    values["hyperpod_kit"]["homes"] = {"file_system_id": "fs-0123456789abcdef0"}
    homes = place / "homes.json"
    homes.write_text(json.dumps(values))
    script.write_text("#!/bin/bash\nsrun true\n")
    file.write_text('{"text": "a"}\n')
    tokenizer = place / "tokenizer.json"
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}
    empty = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    tokenizer.write_text(json.dumps({"version": "1.0", "added_tokens": [], **dict.fromkeys(empty), "model": model}))
    return {
        "gone": place / "gone" / "x",
        "config": config,
        "homes": homes,
        "root": place / "root",
        "script": script,
        "file": file,
        "tokenizer": tokenizer,
        "out": place / "out",
    }


def _run(words: List[str]) -> int:
    if words[0] != NODE:
        return run_command_line(words)
    try:
        return node_cli.run(words[1:])
    except SystemExit as end:  # of argparse
        return int(end.code or 0)


def _end_of(words: List[str], place: Path) -> Tuple[int, str]:
    printed = place / "printed"
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            output = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            for stream in (1, 2):
                os.dup2(output, stream)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(place)
            code = _run(words)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), printed.read_text(errors="replace")[-LONGEST:]


if __name__ == "__main__":
    sys.exit(main())
