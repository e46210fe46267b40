"""Rendered units: golden text, what systemd itself thinks of them, and the names."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hyperpod_kit.bundle.render import Bundle, make_jinja_environment, render_template
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.units import mount_unit_templates_and_names, systemd_escape_path

CHECKOUT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "golden"


def rendered(mount: EfsMount | S3Mount) -> dict[str, str]:
    config = NodeConfig("demo", "on_create", {})
    env = make_jinja_environment(CHECKOUT / "templates")
    return {
        unit: render_template(env, template, mount=mount, config=config).decode()
        for template, unit in mount_unit_templates_and_names(mount)
    }


@pytest.mark.parametrize("unit", sorted(path.name for path in GOLDEN.iterdir()))
def test_golden(bundle: Bundle, unit: str) -> None:
    assert bundle.files[f"units/{unit}"].decode() == (GOLDEN / unit).read_text()


def test_a_writable_bucket() -> None:
    mount = S3Mount(
        "ckpt",
        "/mnt/check points",
        "sagemaker-ckpt",
        "100%/$x/",
        read_only=False,
        allow_delete=True,
        allow_overwrite=True,
        uid=2001,
        gid=2001,
        dir_mode="0750",
        file_mode="0640",
    )
    text = rendered(mount)["hyperpod-kit-s3-ckpt.service"]
    line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    assert line == (
        "ExecStart=/usr/bin/mount-s3 --foreground --allow-other --allow-delete --allow-overwrite "
        '--uid "2001" --gid "2001" --dir-mode "0750" --file-mode "0640" '
        '--prefix "100%%/$$x/" "sagemaker-ckpt" "/mnt/check points"'
    )


@pytest.mark.needs("systemd-analyze")
def test_systemd_finds_nothing_wrong(bundle: Bundle, tmp_path: Path) -> None:
    units = {path.split("/")[1]: data for path, data in bundle.files.items() if path.startswith("units/")}
    for name, data in units.items():
        # The programs are not on this machine; whether they are is not the question.
        text = data.decode().replace("/opt/hyperpod-kit/current/bin/hyperpod-kit", "/bin/true")
        (tmp_path / name).write_text(text.replace("/usr/bin/mount-s3", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in sorted(units))],
        text=True,
        timeout=60,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    about_ours = [line for line in done.stdout.splitlines() if "hyperpod-kit" in line]
    assert about_ours == []


@pytest.mark.needs("shellcheck")
def test_shellcheck() -> None:
    scripts = [str(path) for path in sorted((CHECKOUT / "lifecycle_scripts").glob("*.sh"))]
    done = subprocess.run(["shellcheck", *scripts], text=True, timeout=60, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "path, escaped",
    [
        ("/", "-"),
        ("/fsx", "fsx"),
        ("/efs/trainer", "efs-trainer"),
        ("/mnt//data/", "mnt-data"),
        ("/mount-s3", r"mount\x2ds3"),
        ("/.cache/a.b", r"\x2ecache-a.b"),
        ("/a b/ü", r"a\x20b-\xc3\xbc"),
        ("/x_y:z", "x_y:z"),
    ],
)
def test_escape_path(path: str, escaped: str) -> None:
    assert systemd_escape_path(path) == escaped
    if shutil.which("systemd-escape"):
        done = subprocess.run(["systemd-escape", "-p", path], text=True, timeout=20, stdout=subprocess.PIPE, check=True)
        assert done.stdout.strip() == escaped


def test_escape_path_refuses_dots() -> None:
    with pytest.raises(ValueError, match=r"\.\."):
        systemd_escape_path("/a/../b")
