"""What makes a command line slow to start is what it imports; lab/programs/start_up.py measures the seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys

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
from hyperpod_kit.cli.main import SECTIONS
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
