"""fleet and support-bundle on a rehearsed cluster: what its nodes wrote by themselves, once and a thousand times."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, Dict

from driver import CONFIG, Driver, wait_until

MEASURED = """
import re, sys, time
from hyperpod_kit.cli.main import run_command_line
began = time.process_time()
code = run_command_line(["fleet", "--notes", sys.argv[1], "--html", sys.argv[2]])
spent = time.process_time() - began
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]  # ru_maxrss is also of what forked it
print(code, spent, peak, file=sys.stderr)
"""


def test_the_fleet_is_what_its_nodes_wrote(cluster: Driver, tmp_path: Path) -> None:
    """Notes of three nodes, copied a thousand times, are shown in less than 2 s and with less than 100 MB."""
    notes = tmp_path / "notes"

    def look() -> Dict[str, Any]:
        seen: Dict[str, Any] = cluster.data("fleet", str(CONFIG), "--save", str(notes), check=False)
        return seen

    wait_until("health checks of all nodes", lambda: all(node["mounts"] for node in look()["nodes"]), timeout=120)
    view = look()
    assert len(view["nodes"]) == 4 and all(node["name"].startswith("ip-") for node in view["nodes"]), view
    for node in view["nodes"]:
        assert {mount["state"] for mount in node["mounts"]} == {"ok"} and node["since"] and node["bundle_id"], node
    assert not view["not_known"], "Slurm's queue is known"
    many = tmp_path / "many"
    many.mkdir()
    for original in sorted(notes.iterdir())[:3]:
        text = original.read_text()
        instance = json.loads(text)["target"]["instance_id"]
        for number in range(1000):
            copy = f"{instance[:-4]}{number:04}"
            (many / f"{original.name[:4]}{copy}.notes.json").write_text(text.replace(instance, copy))
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(many), str(tmp_path / "fleet.html")],
        capture_output=True,
        text=True,
        check=True,
    )
    _, seconds, kilobytes = done.stderr.split()[-3:]
    assert float(seconds) < 2.0 and int(kilobytes) < 100_000, done.stderr


def test_a_support_archive_has_every_node(cluster: Driver, tmp_path: Path) -> None:
    out = tmp_path / "fault.tar.gz"
    cluster.kit("support-bundle", str(CONFIG), "--out", str(out))
    with tarfile.open(out) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    files = [path for path in (tmp_path / "unpacked").rglob("*") if path.is_file()]
    names = {str(path) for path in files}
    text = "".join(path.read_text() for path in files)
    for part in ("health.json", "slurm-guard.json", "status.json", "mounts.json", "provisioning.log", "journal.log"):
        assert sum(name.endswith(f"/{part}") for name in names) == 4, (part, names)
    assert "verify-bundle" in text and "PRIVATE KEY" not in text
