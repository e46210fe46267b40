"""What makes a command line slow to start is what it imports; lab/programs/start_up.py measures the seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs_build.blocks import ROOT

HEAVY = (
    "boto3",
    "botocore",
    "jinja2",
    "paramiko",
    "rich",
    "yaml",
    "torch",
    "numpy",
    "asyncio",
    "ssl",
    "urllib.request",
)

EVERY_MODULE = """
import importlib, json, sys
from hyperpod_kit.cli.table import SECTIONS
places = {name: entry.import_path.partition(":")[0] for entries in SECTIONS.values() for name, entry in entries.items()}
found = {}
for name, module in places.items():
    before = set(sys.modules)
    importlib.import_module(module)
    new = sorted(word for word in sys.argv[1:] if word in sys.modules and word not in before)
    if new:
        found[f"{name} ({module})"] = new
print(json.dumps(found))
"""


MOST_MODULES = {
    "from hyperpod_kit.checkpoint import Manager": 99,
    "import hyperpod_kit.checkpoint.agent.agent_main": 132,
    "import hyperpod_kit.job.cli, hyperpod_kit.job.run.supervisor": 173,
}
"""What a program does first -> how many modules of ours that imports, at most. They only fall."""

SAVE_AND_RESTORE = """
import os, sys, torch
from hyperpod_kit.checkpoint import Manager, State
manager = Manager(sys.argv[1])
before = set(sys.modules)
state = State(torch.nn.Linear(2, 2))
manager.restore(state)
manager.save(0, state).wait("durable", timeout=60)
manager.close()
print([name for name in sys.modules if name.startswith("hyperpod_kit.") and name not in before])
"""


def python(*argv: str) -> str:
    done = subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_command_imports_what_it_may_not_need() -> None:
    """--help, completion and a wrong word must not pay for AWS's SDK."""
    found = json.loads(python("-c", EVERY_MODULE, *HEAVY))
    assert not found, f"import these inside of the function that needs them: {found}"


def test_the_engine_imports_no_framework() -> None:
    """torch apart, of course."""
    frameworks = ("transformers", "lightning", "pytorch_lightning", "accelerate", "deepspeed", "megatron", "torchtitan")
    more = ("peft", "datasets", "tokenizers", "torchdata", "safetensors", "pyarrow", "boto3")
    program = (
        "import sys, hyperpod_kit.checkpoint as engine\n"
        "early = 'torch' in sys.modules\n"
        "engine.Manager, engine.State, engine.load_state, engine.load_weights\n"
        f"print(early, [name for name in {(*frameworks, *more)} if name in sys.modules])"
    )
    assert python("-c", program).strip() == "False []"


@pytest.mark.parametrize("start", MOST_MODULES)
def test_a_start_imports_few_modules(start: str) -> None:
    """Each costs 0.2 to 0.4 ms, and what all make together may set off a garbage collection of torch's objects."""
    names = python("-c", f"{start}; import sys; print(*sys.modules)").split()
    ours = [name for name in names if name.startswith("hyperpod_kit")]
    assert len(ours) <= MOST_MODULES[start], "import what only a later call needs where it is used"


def test_what_a_manager_needs_is_imported_when_it_is_made(tmp_path: Path) -> None:
    """A save waits for no import, and a package that lies on a mount may be gone by then."""
    assert python("-c", SAVE_AND_RESTORE, str(tmp_path / "run")).strip() == "[]"
