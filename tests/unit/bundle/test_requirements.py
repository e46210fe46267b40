"""Lock files of the training environment in the bundle: as they are; what is not locked is refused before it ships."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hyperpod_kit.bundle.render import render
from hyperpod_kit.cli.bundle.validate_command import validate
from hyperpod_kit.config.load import load
from hyperpod_kit.errors import BundleError
from hyperpod_kit.model.node_config import NodeConfig

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
HASH = f"--hash=sha256:{'0' * 64}"
KIT = f"click==8.1.8 {HASH}\nrich==13.9.4 {HASH}\n"
GOOD = f"""\
# uv pip compile --generate-hashes requirements.in
--index-url https://packages.example.com/simple
--only-binary :all:
Click==8.1.8 \\
    {HASH} \\
    --hash=sha256:{"1" * 64}
    # via hyperpod-kit
rich[jupyter]==13.9.4 ; python_version >= "3.10" {HASH}
torch @ https://packages.example.com/torch-2.9.1.whl {HASH}
"""


def configuration(directory: Path, text: str | bytes, **environment: Any) -> Path:
    values = json.loads(EXAMPLE.read_text())
    values["hyperpod_kit"]["steps"] = {
        "training_environment": {
            "path": "/fsx/environments",
            "requirements": {"x86_64": "requirements.lock"},
            **environment,
        }
    }
    if isinstance(text, str):
        text = text.encode()
    (directory / "requirements.lock").write_bytes(text)
    path = directory / "provisioning_parameters.json"
    path.write_text(json.dumps(values))
    return path


def said(config: Path) -> str:
    return CliRunner().invoke(validate, [str(config)], standalone_mode=False).output


def test_a_lock_file_ships_as_it_is_and_the_node_is_told(tmp_path: Path) -> None:
    config = configuration(tmp_path, GOOD)
    assert "HPK-" not in said(config)
    bundle = render(load(config))
    assert bundle.files["training_environment/x86_64.lock"] == GOOD.encode()
    asked = NodeConfig.from_json(bundle.files["node_config.json"].decode()).steps.training_environment
    assert asked is not None and asked.directory == "/fsx/environments/training"
    assert render(load(configuration(tmp_path, GOOD + "\n"))).bundle_id != bundle.bundle_id


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it has no requirement"),
        ("# nothing\n--no-index\n", "it has no requirement"),
        (f"{KIT}torch==2.9.1\n", "line 3 has no --hash=sha256"),
        (f"{KIT}torch==2.9.1 # {HASH}\n", "line 3 has no --hash=sha256"),
        (f"{KIT}torch==2.9.1 --hash=md5:0123\n", "line 3 has no --hash=sha256"),
        (f"{KIT}torch>=2.9.1 {HASH}\n", "line 3 does not name a single version"),
        (f"{KIT}torch==2.9.* {HASH}\n", "line 3 does not name a single version"),
        (f"{KIT}./torch.whl {HASH}\n", "line 3 does not name a single version"),
        (f"{KIT}-r other.txt\n", "line 3: -r is not one of --index-url"),
        (f"{KIT}--editable=.\n", "line 3: --editable is not one of --index-url"),
        (f"--index-url https://user:secret@example.com/simple\n{KIT}", "line 1 has a URL with a user or a password"),
        (b"\xff\xfe", "it is not UTF-8 text"),
    ],
)
def test_what_is_not_locked_is_refused(text: str | bytes, problem: str, tmp_path: Path) -> None:
    config = configuration(tmp_path, text)
    with pytest.raises(BundleError, match=problem):
        render(load(config))
    output = said(config)
    assert "HPK-O053" in output and problem in output and "secret@" not in output


def test_a_lock_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = configuration(tmp_path, KIT, requirements={"x86_64": "missing.lock"})
    with pytest.raises(BundleError, match=r"missing\.lock: No such file"):
        render(load(config))
    assert "HPK-O052" in said(config)


def test_what_the_kit_itself_needs_is_missed(tmp_path: Path) -> None:
    output = said(configuration(tmp_path, f"torch==2.9.1 {HASH}\nRich==13.9.4 {HASH}\n"))
    assert "warning HPK-O054" in output and "lacks click>=8.1," in output
