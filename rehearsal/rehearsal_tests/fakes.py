"""Machines and links made of directories and lists: what lies below the control plane, without a kernel's help."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.run import Completed
from hyperpod_kit.system.process import Process
from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.machines.network import Network
from hyperpod_rehearsal.metadata.metadata_server import MetadataServers
from hyperpod_rehearsal.platform.fleet import Fleet
from hyperpod_rehearsal.platform.node_files import AGENT_STATUS, NodeSecrets
from hyperpod_rehearsal.platform.operations import Operations
from hyperpod_rehearsal.platform.slurm_control import SlurmControl
from hyperpod_rehearsal.records.layout import Layout
from hyperpod_rehearsal.records.settings import RehearsalSettings
from hyperpod_rehearsal.s3.store import StoredBuckets
from tests.support.runner import RecordingRunner


class DirectoryMachines:
    """A machine is a directory; it "boots" by reporting what `agent_report` decides for its node.json."""

    def __init__(self, layout: Layout, agent_says=lambda config: ("Running", "")):
        self.layout = layout
        self.agent_report = agent_says
        self.exit_codes: dict[str, Any] = {}
        self.started: list[Any] = []
        self.executed: list[Any] = []
        self.answers: dict[str, Any] = {}

    def directory(self, instance_id):
        return self.layout.nodes / instance_id

    def root(self, instance_id):
        return self.directory(instance_id) / "root"

    def mount_overlay_root(self, instance_id):
        root = self.root(instance_id)
        (root / "etc").mkdir(parents=True)
        ids = f"x:{os.getuid()}:{os.getgid()}"
        (root / "etc/passwd").write_text(f"munge:{ids}::/:/bin/false\nubuntu:{ids}::/home/ubuntu:/bin/bash\n")
        return root

    def start(self, instance_id, host_name, instance_store=False):
        self.exit_codes[instance_id] = None
        self.started.append(instance_id)
        config = json.loads((self.root(instance_id) / "etc/hyperpod-rehearsal/node.json").read_text())
        state, message = self.agent_report(config)
        status = self.root(instance_id) / AGENT_STATUS.lstrip("/")
        status.parent.mkdir(parents=True, exist_ok=True)
        status.write_text(json.dumps({"state": state, "message": message, "at": 4e9}))
        return Process(1, 1)

    def exit_code(self, instance_id):
        return self.exit_codes.get(instance_id)

    def kill(self, instance_id):
        self.exit_codes[instance_id] = -9

    def remove(self, instance_id):
        self.kill(instance_id)
        shutil.rmtree(self.directory(instance_id), ignore_errors=True)

    def execute(self, instance_id, argv, timeout=20.0, check=True):
        if self.exit_codes.get(instance_id) is not None:
            raise RehearsalError("does not run")
        line = " ".join(argv)
        self.executed.append(line)
        text = next((out for prefix, out in self.answers.items() if line.startswith(prefix)), "")
        return Completed(tuple(argv), 0, text, "")


def make_operations(root: Path, agent_says=lambda config: ("Running", "")) -> Operations:
    """Operations over directories below `root`, with an S3 store that has the bucket sagemaker-test."""
    layout = Layout(root)
    layout.nodes.mkdir(parents=True)
    store = StoredBuckets(layout.s3)
    store.create_bucket("sagemaker-test")
    machines: Any = DirectoryMachines(layout, agent_says)
    fleet = Fleet(
        layout,
        RehearsalSettings("test", "image"),
        Network(layout, 1, RecordingRunner(otherwise="")),
        MetadataServers(lambda netns: socket.create_server(("127.0.0.1", 0))),
        machines,
        NodeSecrets("ssh-ed25519 AAAA test", b"munge", Key("a", "b", "c", node=True)),
        "http://10.1.0.1:1",
        threading.Event(),
    )
    return Operations(fleet, SlurmControl(machines), store, lambda: None)
