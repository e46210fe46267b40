"""The steps `groups` and `shares` on users of this process's own /etc: `python -m … ROOT GROUPS-AS-JSON`, one answer a
line. Run in a mount namespace whose /etc is a copy."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.shares import Group
from hyperpod_kit.node.setup import groups, shares
from hyperpod_kit.run import LocalRunner
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json
from tests.unit.node.fakes import FakeNode

LUSTRE = LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")


def main(root: str, wanted: str) -> None:
    shutil.rmtree(Path(root) / "proc", ignore_errors=True)
    fake = FakeNode(Path(root), [LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    os.chmod(root, 0o755)
    config = replace(fake.node.config, groups=tuple(dataclass_from_json(Group, raw) for raw in json.loads(wanted)))
    node = replace(fake.node, config=config, runner=LocalRunner())
    for step in (groups.STEP, shares.STEP):
        try:
            before = step.pending(node)
            done = step.run(node)
            print(json.dumps([before, done.changed, done.detail, step.pending(node)]))
        except NodeError as err:
            print(json.dumps(["error", err.message]))


if __name__ == "__main__":
    main(*sys.argv[1:])
