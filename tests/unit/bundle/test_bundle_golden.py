"""Whole bundles, as far as they are rendered: every unit and every configuration file of a few configurations.

`HPK_UPDATE_GOLDEN=1 pytest tests/unit/bundle/test_bundle_golden.py` accepts what is rendered now; look at the diff.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.bundle.render import render
from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.settings.findings import select_errors
from hyperpod_kit.config.validate import validate
from tests.property.every_field import ACCESS_POINTS, BESIDE, document

CHECKOUT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "golden"


def example() -> dict[str, Any]:
    values: dict[str, Any] = json.loads((CHECKOUT / "provisioning_parameters.example.json").read_text())
    return values


def extension() -> dict[str, Any]:
    """HyperPod sets Slurm and FSx up, and nothing but a bucket is ours."""
    values = example()
    values["hyperpod_kit"]["cluster"]["lifecycle_mode"] = "on_init_complete"
    values["hyperpod_kit"]["mounts"] = values["hyperpod_kit"]["mounts"][1:]
    return values


CASES = {"everything": document, "example": example, "extension": extension}


def rendered(values: dict[str, Any]) -> dict[str, bytes]:
    """Place -> content of everything that follows from the configuration."""
    settings, found = decode_settings(values, ACCESS_POINTS)
    assert select_errors([*found, *validate(settings)]) == []
    files = render(replace(settings, directory=BESIDE)).files
    return {
        place: data
        for place, data in files.items()
        if place.startswith("units/") or place in ("node_config.json", "provisioning_parameters.json")
    }


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    files = rendered(CASES[case]())
    folder = GOLDEN / case
    if os.environ.get("HPK_UPDATE_GOLDEN"):
        shutil.rmtree(folder, ignore_errors=True)
        for place, data in files.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_bytes(data)
    kept = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert sorted(files) == sorted(kept)
    for place, data in files.items():
        assert data.decode() == kept[place], f"golden/{case}/{place}: HPK_UPDATE_GOLDEN=1 accepts it"


def test_nothing_of_this_process_gets_into_a_bundle(tmp_path: Path) -> None:
    """Other hash seed, locale, time zone, umask, working directory, user's directories: the same name of the bundle."""
    code = (
        "import sys; from pathlib import Path; from hyperpod_kit.config.load import load; "
        "from hyperpod_kit.bundle.render import render; print(render(load(Path(sys.argv[1]))).bundle_id)"
    )
    identities = set()
    for seed, zone, locale, where in (("1", "UTC", "C", CHECKOUT), ("2", "Asia/Tokyo", "C.UTF-8", tmp_path)):
        done = subprocess.run(
            [
                "sh",
                "-c",
                f'umask 0{seed}7; exec "$@"',
                "sh",
                sys.executable,
                "-c",
                code,
                str(CHECKOUT / "provisioning_parameters.example.json"),
            ],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONHASHSEED": seed,
                "TZ": zone,
                "LC_ALL": locale,
                "HOME": str(where),
                "PYTHONPATH": str(CHECKOUT),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            cwd=where,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
        )
        identities.add(done.stdout)
    assert len(identities) == 1
