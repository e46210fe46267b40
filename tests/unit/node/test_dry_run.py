"""`plan` and `apply --dry-run`: what they say would change is what changes, and saying it changes nothing.

That both agree after every death of a creation is part of test_creation_sweep.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, Tuple

import pytest

from tests.support.rows import full


def tree(root: Path) -> Dict[str, Tuple[float, Any]]:
    """Every file of a node but the recorder's own: when it was written, and what is in it."""
    return {
        str(path.relative_to(root)): (path.lstat().st_mtime, path.read_bytes() if path.is_file() else None)
        for path in sorted(root.rglob("*"))
        if not {"recorder", "__pycache__", "locks"} & set(path.relative_to(root).parts) and not path.is_dir()
    }


CHANGING = re.compile(
    r"systemctl (?!is-|show)|u?mount |useradd|groupadd|cc |dpkg (-i|--install)|apt-get"
    r"|scontrol reconf|apt-mark (?!showhold)"
)


@pytest.mark.parametrize("role, command", [*full(("compute", ("plan",))), ("controller", ("apply", "--dry-run"))])
def test_saying_it_changes_nothing(make_sandbox: Any, role: str, command: Tuple[str, ...]) -> None:
    sandbox = make_sandbox(role)
    sandbox.install()
    before = tree(sandbox.root)
    done = sandbox.node(*command, "--mode", "on_create", "--json")
    assert done.returncode == 0, done.stderr
    would = {step["step"]: step["would"] for step in json.loads(done.stdout)["steps"]}
    assert would["users"] == "create trainer"
    assert would["mount:home"] == "start hyperpod-kit-mount-home.service"
    assert would["units"].startswith("install hyperpod-kit-")
    assert tree(sandbox.root) == before
    assert [call for call in sandbox.calls if CHANGING.match(call)] == []


@pytest.mark.full
def test_in_words_and_after_the_fact(make_sandbox: Any) -> None:
    sandbox = make_sandbox("compute")
    sandbox.install()
    said = sandbox.node("plan", "--mode", "on_create").stdout.splitlines()
    assert "users: create trainer" in said
    assert any(line.startswith("spank-plugin (not required): build /") for line in said)
    assert int(said[-1].partition("=")[2]) > 5
    done = sandbox.node("apply", "--mode", "on_create", "--json")
    status = json.loads(done.stdout)
    assert (done.returncode, status["ok"], status["mode"]) == (0, True, "on_create")
    assert "hyperpod-kit: mount:home: changed" in done.stderr
    assert f"changed={status['changed']}" == said[-1]
    assert sandbox.node("plan", "--mode", "on_create").stdout.endswith("changed=0\n")
    # As a module, and in the mode that the bundle was made for when none is named.
    lib = f"{sandbox.root}/opt/hyperpod-kit/current/lib"
    again = sandbox.run(["/usr/bin/python3", "-S", "-m", "hyperpod_kit.node", "apply", "--json"], PYTHONPATH=lib)
    status = json.loads(again.stdout)
    config = json.loads((sandbox.staging / "node_config.json").read_text())
    assert (status["changed"], status["mode"]) == (0, config["lifecycle_mode"])
    wrong = sandbox.run(["/usr/bin/python3", "-S", "-m", "hyperpod_kit.node", "mounts", "nosuch"], PYTHONPATH=lib)
    assert wrong.returncode == 3 and wrong.stderr.startswith("error: no mount nosuch")


@pytest.mark.full
def test_what_cannot_be_told_is_said(make_sandbox: Any) -> None:
    sandbox = make_sandbox("compute")
    sandbox.install()
    (sandbox.root / "etc/passwd").write_text("trainer:x:1001:1001::/home/trainer:/bin/bash\n")
    done = sandbox.node("apply", "--dry-run", "--mode", "on_create")
    assert done.returncode == 0
    assert "users: cannot tell: user trainer has ids 1001:1001 on this node, expected 2001:2001" in done.stdout
