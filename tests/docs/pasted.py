"""Blocks of a page run as somebody who pastes them would: real bash, one after the other, in one directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterable, Mapping

import yaml

from docs_build.blocks import ROOT, Block, before

EXAMPLE = ROOT / "provisioning_parameters.example.json"


def run(block: Block, directory: Path, environment: Mapping[str, str], timeout: float = 110) -> None:
    """Run a block; its first failing command ends it. Raises AssertionError with all it said."""
    programs = directory / ".programs"
    programs.mkdir(exist_ok=True)
    # The interpreter's own directory comes behind: an installation that lies there may be another one than this.
    for name, words in (("hyperpod-kit", "-m hyperpod_kit.cli.main"), ("python", "")):
        program = programs / name
        program.write_text(f"#!/bin/sh\nexec '{sys.executable}' {words} \"$@\"\n")
        program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=directory,
        env={
            **os.environ,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
            "HOME": str(directory),
            "PYTHONPATH": str(ROOT),
            # AWS's own command line lies beside the interpreter, which nobody has to have activated.
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{block.place}\n{done.stdout}\n{done.stderr}"
    assert "\x1b" not in done.stdout + done.stderr, f"{block.place}: colours or a moving line where no terminal is"


def run_page(blocks: Iterable[Block], directory: Path, environment: Mapping[str, str], timeout: float = 110) -> None:
    """Run blocks of a page, each under the configuration that the page has shown up to there."""
    for block in blocks:
        configure(block, directory)
        run(block, directory, environment, timeout)


def configure(block: Block, directory: Path) -> None:
    """Lay the pieces of configuration above a block over the one in its directory, if there is one."""
    path = directory / EXAMPLE.name.replace(".example", "")
    for piece in [*before(block, "json", "configuration"), *before(block, "yaml", "configuration")]:
        if path.exists():
            path.write_text(json.dumps(over(json.loads(path.read_text()), read(piece)), indent=2))


def project(directory: Path) -> Path:
    """A directory with the example as its configuration, AWS's keys of it alone as `theirs`, and scripts for jobs."""
    directory.mkdir()
    (directory / "theirs").mkdir()
    theirs = {key: value for key, value in json.loads(EXAMPLE.read_text()).items() if key != "hyperpod_kit"}
    (directory / "theirs" / "provisioning_parameters.json").write_text(json.dumps(theirs))
    shutil.copy(EXAMPLE, directory)
    shutil.copy(EXAMPLE, directory / EXAMPLE.name.replace(".example", ""))
    shutil.copytree(ROOT / "slurm" / "jobs", directory / "jobs")
    (directory / "examples").symlink_to(ROOT / "examples")
    return directory


def read(block: Block) -> Any:
    """The value of a json or yaml block."""
    if block.language == "yaml":
        return yaml.safe_load(block.text)
    text = block.text.strip()
    return json.loads(text if text[0] in "[{" else f"{{{text}}}")


def over(values: Mapping[str, Any], piece: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `piece` laid over it: objects key by key, everything else replaced."""
    both = {
        key: over(values[key], value) if isinstance(value, Mapping) and isinstance(values.get(key), Mapping) else value
        for key, value in piece.items()
    }
    return {**values, **both}
