"""Scripts of the configuration in the bundle: every byte of theirs; what could not start is refused before it ships."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hyperpod_kit.bundle import scripts
from hyperpod_kit.bundle.render import render
from hyperpod_kit.cli.bundle.validate_command import validate
from hyperpod_kit.config.load import load
from hyperpod_kit.errors import BundleError
from hyperpod_kit.model.node_config import NodeConfig

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A directory with a script and what it needs."""
    directory = tmp_path / "own/docker"
    (directory / "etc").mkdir(parents=True)
    (directory / "install.sh").write_text("#!/bin/bash\ncp etc/daemon.json /etc/docker/\n")
    (directory / "etc/daemon.json").write_bytes(b"{}\r\n")
    return directory


def configuration(directory: Path, **script: Any) -> Path:
    values = json.loads(EXAMPLE.read_text())
    values["hyperpod_kit"]["scripts"] = [{"name": "docker", "path": "own/docker", "run": "install.sh", **script}]
    path = directory / "provisioning_parameters.json"
    path.write_text(json.dumps(values))
    return path


def test_every_file_ships_and_the_node_is_told(own: Path, tmp_path: Path) -> None:
    (own / ".git").mkdir()
    (own / ".git/config").write_text("")
    (own / ".gitignore").write_text("")
    (own / "__pycache__").mkdir()
    (own / "__pycache__/x.pyc").write_text("")
    bundle = render(load(configuration(tmp_path, arguments=["--quiet"], when="before-mounts", timeout=60)))
    shipped = {place: data for place, data in bundle.files.items() if place.startswith("scripts/")}
    assert shipped == {
        "scripts/docker/install.sh": b"#!/bin/bash\ncp etc/daemon.json /etc/docker/\n",
        "scripts/docker/etc/daemon.json": b"{}\r\n",
    }
    [script] = NodeConfig.from_json(bundle.files["node_config.json"].decode()).scripts
    assert (script.run, script.arguments, script.when) == ("install.sh", ("--quiet",), "before-mounts")
    (own / "etc/daemon.json").write_bytes(b"{ }\r\n")
    again = render(load(configuration(tmp_path, arguments=["--quiet"], when="before-mounts", timeout=60)))
    assert again.bundle_id != bundle.bundle_id


def test_one_file_is_its_own_program(own: Path, tmp_path: Path) -> None:
    values = json.loads(configuration(tmp_path).read_text())
    values["hyperpod_kit"]["scripts"] = [{"name": "docker", "path": "own/docker/install.sh"}]
    path = tmp_path / "provisioning_parameters.json"
    path.write_text(json.dumps(values))
    bundle = render(load(path))
    assert "scripts/docker/install.sh" in bundle.files and "scripts/docker/etc/daemon.json" not in bundle.files


def break_file(own: Path, what: str) -> None:
    script = own / "install.sh"
    if what == "does not exist":
        os.rename(own, own.with_name("other"))
    elif what == "has no 'install.sh'":
        script.rename(own / "setup.sh")
    elif what == "does not begin with #!/":
        script.write_text("#! /bin/bash\necho\n")
    elif what == "Windows line ends":
        script.write_bytes(b"#!/bin/bash\r\necho\r\n")
    elif what == "cannot be the name":
        (own / "a b").write_text("")
    elif what == "is a symbolic link":
        os.rename(own, own.with_name("other"))
        own.symlink_to(own.with_name("other"))
    elif what == "a link or not a plain file":
        (own / "link").symlink_to("install.sh")
    elif what == "more than 50 MiB":
        with (own / "large").open("wb") as stream:
            stream.truncate(scripts.LARGEST + 1)


@pytest.mark.parametrize(
    "what",
    [
        "does not exist",
        "has no 'install.sh'",
        "does not begin with #!/",
        "Windows line ends",
        "is a symbolic link",
        "a link or not a plain file",
        "more than 50 MiB",
        "cannot be the name",
    ],
)
def test_what_would_not_start_is_refused(own: Path, tmp_path: Path, what: str) -> None:
    config = configuration(tmp_path)
    assert CliRunner().invoke(validate, [str(config)], standalone_mode=False).return_value == 0
    break_file(own, what)
    with pytest.raises(BundleError, match=what):
        render(load(config))
    done = CliRunner().invoke(validate, [str(config)], standalone_mode=False)
    assert done.return_value == 1 and "HPK-O010" in done.output and what in done.output, done.output


def test_a_fifo_is_not_waited_for(own: Path, tmp_path: Path) -> None:
    os.mkfifo(own / "fifo")
    with pytest.raises(BundleError, match="not a plain file"):
        render(load(configuration(tmp_path)))
