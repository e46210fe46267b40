"""examples/grafana: every series that a panel asks for is one that we write, and no two panels lie on each other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, List

ROOT = Path(__file__).parents[3]
BOARD: Dict[str, Any] = json.loads((ROOT / "examples/grafana/hyperpod-kit.json").read_text())
PANELS: List[Dict[str, Any]] = BOARD["panels"]
OF_THE_EXPORTER = {"node_textfile_mtime_seconds"}


def ours() -> set[str]:
    """Names of series in the places that write any."""
    health = (ROOT / "hyperpod_kit/node/health/metrics.py").read_text()
    quota = (ROOT / "hyperpod_kit/storage/quota/check.py").read_text()
    parts = re.findall(r'\("([a-z_]+)", \[', quota)
    assert "hyperpod_kit_quota_{name}" in quota and len(parts) == 5
    slurm = (ROOT / "hyperpod_kit/node/slurm/guard/commands.py").read_text()
    return set(re.findall(r'"(hyperpod_kit_\w+)",', health + slurm)) | {f"hyperpod_kit_quota_{part}" for part in parts}


def test_every_series_is_one_that_we_write_and_none_is_forgotten() -> None:
    asked = {
        name
        for panel in PANELS
        for target in panel.get("targets", [])
        for name in re.findall(r"\b(?:hyperpod_kit|node)_\w+", target["expr"])
    }
    assert asked - OF_THE_EXPORTER - ours() == set()
    seldom = {"mount_degraded", "mount_nearly_full", "mount_failed_checks", "health_kept", "unprotected_mounts"}
    assert ours() - asked == {f"hyperpod_kit_{name}" for name in seldom}


def test_panels_have_numbers_of_their_own_and_lie_side_by_side() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in PANELS)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) == 23
