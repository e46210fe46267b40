"""Faults of Slurm on a machine, as a person or an agent makes them, and who reports what its guard found there."""

from __future__ import annotations

import json
import time
from typing import Any, Dict, List

from driver import Driver, wait_until

from hyperpod_rehearsal import boot, targets

KIT = "/opt/hyperpod-kit/current/bin/hyperpod-kit"
RECORD = "/run/hyperpod-kit/slurm.json"
CONF = "/opt/slurm/etc/slurm.conf"
PLUGINS = "/opt/slurm/etc/plugstack.conf"
PROLOG = "/opt/hyperpod-kit/current/slurm/prolog.sh"
MINUTE = 60.0
"""Within which a fault is reported on a machine that has time for it; a wait has more, for one that is busy."""
BUSY = 4

_PLUGIN = "/opt/hyperpod-kit/spank/auto_resume.so"
_KEY = "/etc/munge/munge.key"


def without_block(*files: str) -> str:
    """A shell line that takes our lines out of these files."""
    return f"sed -i '/^# >>> hyperpod-kit$/,/^# <<< hyperpod-kit$/d' {' '.join(files)}"


REMOVE_HOOKS = f"{without_block(CONF, PLUGINS)} && scontrol reconfigure"

HIDE_COMPILER = "mv /usr/bin/cc /usr/bin/cc.away"
SHOW_COMPILER = "mv /usr/bin/cc.away /usr/bin/cc"

PLUGIN_OF_ANOTHER_SLURM = (
    "rm -rf /root/other && mkdir /root/other && cp -r /usr/include/slurm /root/other/ && "
    "sed -i 's/\\(define SLURM_VERSION_NUMBER\\).*/\\1 0x190b00/' /root/other/slurm/slurm_version.h && "
    f"cc -shared -fPIC -O2 -I /root/other -o {_PLUGIN}.new "
    f"/opt/hyperpod-kit/current/slurm/plugin/auto_resume.c && mv {_PLUGIN}.new {_PLUGIN}"
)
"""What a node has that was made for the other of two Slurms."""

EXCHANGE_KEY = f"cp -a {_KEY} {_KEY}.kept && head -c 128 /dev/urandom >{_KEY} && systemctl restart munge"
RESTORE_KEY = f"mv {_KEY}.kept {_KEY} && systemctl restart munge && systemctl restart slurmd"


def guard_codes(driver: Driver, node: str) -> Dict[str, bool]:
    """What the guard's last look on a node found: code -> whether it is a fault."""
    text = driver.on(node, f"cat {RECORD}", check=False)
    findings: List[Dict[str, Any]] = json.loads(text)["findings"] if text.startswith("{") else []
    return {finding["code"]: finding["fault"] for finding in findings}


def until_code(driver: Driver, node: str, code: str) -> float:
    """Wait until the guard of a node has that finding; the seconds that it took."""
    began = time.monotonic()
    wait_until(f"{code} on {node}", lambda: code in guard_codes(driver, node), timeout=BUSY * MINUTE, every=1)
    return time.monotonic() - began


def until_mended(driver: Driver, node: str, name: str, since: float) -> float:
    """Wait until the guard of a node has done that (`restored`, `built`, `released`) after `since`, Unix seconds, and
    nothing is left to do; how long after."""

    def at() -> float:
        text = driver.on(node, f"cat {RECORD}", check=False)
        tries = json.loads(text)["notes"].get(name, {}) if text.startswith("{") else {}
        done: float = tries.get("at", 0.0)
        return done if done > since and not tries["error"] else 0.0

    return wait_until(f"{name} on {node}", at, timeout=BUSY * MINUTE, every=1) - since


def reported_by_all(driver: Driver, node: str, code: str, *, fault: bool) -> None:
    """`node health` there, `validate-mounts` and `diagnose` from outside have it, each by its exit code too."""
    wait_until(
        f"{code} on {node}", lambda: guard_codes(driver, node).get(code) is fault, timeout=BUSY * MINUTE, every=1
    )

    def health() -> str:
        """Empty while the timer's own check is under way."""
        text = driver.on(node, f"{KIT} node health --json; echo $?")
        return text if text.startswith("{") else ""

    answer, exit_code = wait_until("an answer of `node health`", health, timeout=MINUTE).rsplit("}", 1)
    assert code in [finding["code"] for finding in json.loads(answer + "}")["slurm"]], answer
    own = targets.find_node(boot.require_running(driver.name)[1], node)["instance_id"]
    mounts = driver.data("validate-mounts", str(driver.config), check=False)
    [validated] = [found for found in mounts["nodes"] if found["instance_id"] == own]
    assert code in [finding["code"] for finding in validated["slurm"]], validated
    diagnosis = driver.data("diagnose", str(driver.config), check=False)
    [diagnosed] = [found for found in diagnosis["nodes"] if found["target"]["instance_id"] == own]
    assert code in [finding["code"] for finding in diagnosed["slurm"]], diagnosed
    if fault:
        assert exit_code.strip() == "1" and not validated["healthy"] and not diagnosed["healthy"]


def until_no_fault(driver: Driver) -> None:
    """No node has a fault, and `validate-mounts` says so."""
    nodes = [node["instance_id"] for node in driver.nodes()]

    def quiet() -> bool:
        return not any(any(guard_codes(driver, node).values()) for node in nodes)

    wait_until("a cluster without a fault", quiet, timeout=BUSY * MINUTE, every=2)
    assert driver.data("validate-mounts", str(driver.config))["healthy"]
