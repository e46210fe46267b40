"""What a machine must have for a test: `@pytest.mark.needs("root", "fuse")`, or `require("mounts")` in a fixture.

Each capability is probed once in a process, when the first test asks for it. A test is skipped for nothing else, and
the reason names what is lacking: `make test` tells by that name whether it may be (tests/suite/excuses.py).
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Callable, Dict, List, Sequence

import pytest

from hyperpod_kit.system import mountinfo
from hyperpod_rehearsal.machines import host
from tests.suite.excuses import INSTALLED

CHECKOUT = Path(__file__).resolve().parents[2]
PROBE_SECONDS = 60
TMPFS = 'mount -t tmpfs none "$1"'
FUSE = """
import ctypes, os, sys
handle = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={handle},rootmode=40000,user_id=0,group_id=0"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"probe", os.fsencode(sys.argv[1]), b"fuse", 0, options.encode()):
    sys.exit(f"no FUSE can be mounted: {os.strerror(ctypes.get_errno())}")
"""
LOOP_DEVICE = 'truncate -s 1M "$1/image" && device=$(losetup --find --show "$1/image") && losetup -d "$device"'
USER_NAMESPACE = ["unshare", "--user", "--map-root-user", "true"]
BTRFS = 'truncate -s 128M "$1/image" && mkfs.btrfs -q "$1/image" && mkdir "$1/mnt" && mount -o loop "$1/image" "$1/mnt"'
PACKET_FILTER = """table inet t {
 chain c {
 type filter hook output priority 0; policy accept;
 meta skuid != 0 reject with tcp reset
 }
}
"""


@dataclass(frozen=True)
class Capability:
    """`probe`: why it is lacking, empty when it is there. `is_installed`: `./setup.sh system` brings it, or the suite
    itself, so that root, who may install it, must not do without."""

    probe: Callable[[], str]
    is_installed: bool = False


def _succeeds(argv: Sequence[str], given: str = "") -> str:
    """Why a command fails; empty when it does not."""
    try:
        done = subprocess.run(
            argv, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        return str(err)
    if done.returncode == 0:
        return ""
    return done.stdout.strip() or f"{argv[0]} ends with {done.returncode}"


def _in_own_mounts(*argv: str) -> str:
    """Why a command fails that is given a directory, as root in a mount namespace of its own."""
    if root():
        return root()
    with tempfile.TemporaryDirectory(prefix="hpk-probe-") as place:
        return _succeeds(["unshare", "--mount", "--propagation", "private", *argv, place])


def root() -> str:
    return "" if os.geteuid() == 0 else "this is not root"


def mounts() -> str:
    return _in_own_mounts("bash", "-c", TMPFS, "probe")


def fuse() -> str:
    return _in_own_mounts(sys.executable, "-c", FUSE)


def loop_devices() -> str:
    # The image lies in memory: on it a file system can be made wherever the temporary directory is.
    return _in_own_mounts("bash", "-c", f"{TMPFS} && {LOOP_DEVICE}", "probe")


def btrfs() -> str:
    return _in_own_mounts("bash", "-c", BTRFS, "probe")


def user_namespaces() -> str:
    return _succeeds(USER_NAMESPACE)


def network_namespaces() -> str:
    return root() or _succeeds(["unshare", "--net", "ip", "link", "show"])


def packet_filter() -> str:
    return root() or _succeeds(["unshare", "--net", "nft", "--file", "-"], PACKET_FILTER)


def fanotify() -> str:
    """Questions before an access need CONFIG_FANOTIFY_ACCESS_PERMISSIONS."""
    if root():
        return root()
    content, close_on_exec = 0x04, 0x01
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.fanotify_init(content | close_on_exec, os.O_RDONLY)
    if handle < 0:
        return os.strerror(ctypes.get_errno())
    os.close(handle)
    return ""


def slurm() -> str:
    from tests.unit.job import private_slurm

    return private_slurm.missing() or ""


def slurm_of_this_host() -> str:
    from tests.unit.job import private_slurm

    return f"the tests run on the Slurm of {private_slurm.RELEASE}" if private_slurm.RELEASE else ""


def cgroup_v1() -> str:
    from tests.unit.job import cgroup_slurm

    return cgroup_slurm.missing_hierarchy()


def accounting() -> str:
    from tests.faults import accounting

    return accounting.missing() or ""


def _machines(reasons: List[str]) -> str:
    return ", ".join(reasons)


def _of_packages(reason: str) -> bool:
    return reason.startswith("the package")


def machines() -> str:
    return _machines([reason for reason in host.missing_requirements() if not _of_packages(reason)])


def machine_packages() -> str:
    return _machines([reason for reason in host.missing_requirements() if _of_packages(reason)])


def containers() -> str:
    import containers

    return containers.missing() or ""


def pyxis() -> str:
    import containers

    return "" if containers.real() else f"no sources of enroot and pyxis in {containers.sources()}"


def cuda() -> str:
    import torch

    return "" if torch.cuda.is_available() else "no CUDA device"


def float8() -> str:
    import torch

    if cuda():
        return cuda()
    return "" if torch.cuda.get_device_capability() >= (8, 9) else "this device does not compute in float8"


def systemd_oracle() -> str:
    from tests.property import systemd_oracle

    return "" if systemd_oracle.can_be_asked() else "no systemd here prints what it understood of a unit"


def system_python() -> str:
    return "" if os.path.exists("/usr/bin/python3") else "there is no /usr/bin/python3"


def spank_headers() -> str:
    places = [Path(place, "slurm/spank.h") for place in ("/usr/include", "/opt/slurm/include")]
    return "" if any(path.exists() for path in places) else "no slurm/spank.h (libslurm-dev)"


def root_file_system() -> str:
    place = tempfile.gettempdir()
    return "" if os.stat(place).st_dev == os.stat("/").st_dev else f"{place} is not on the root file system: set TMPDIR"


def disk() -> str:
    entry = mountinfo.mount_containing_path(mountinfo.read_mountinfo(), tempfile.gettempdir())
    return "a tmpfs has no medium but memory: set TMPDIR" if entry is not None and entry.fs_type == "tmpfs" else ""


def access_lists() -> str:
    with tempfile.TemporaryDirectory(prefix="hpk-probe-") as place:
        try:
            os.getxattr(place, "system.posix_acl_default")
        except OSError as err:
            return "" if err.strerror == os.strerror(61) else f"no access lists in {place}: {err.strerror}"
    return ""


def git_history() -> str:
    from tests.support import bundles

    return _succeeds(["git", "-C", str(CHECKOUT), "cat-file", "-e", f"{bundles.EARLIER}^{{commit}}"])


def git_checkout() -> str:
    return _succeeds(["git", "-C", str(CHECKOUT), "rev-parse", "--git-dir"])


def python_3_11() -> str:
    return "" if sys.version_info >= (3, 11) else "tomllib came with Python 3.11"


def xxhash_library() -> str:
    from hyperpod_kit.checkpoint.repository.format import digest

    return "" if digest.load_library_functions() is not None else f"{digest.LIBRARY} 0.8 is not here"


def aws_configuration_scripts() -> str:
    return "" if os.environ.get("HPK_AWS_SCRIPTS") else "HPK_AWS_SCRIPTS names no directory with AWS's base-config"


def debian() -> str:
    from hyperpod_rehearsal.machines import apt_sources

    found = apt_sources.detect_supported_distribution().id
    return "" if found == "debian" else f"this machine is {found}"


def program(name: str) -> str:
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin", str(Path(sys.executable).parent)))
    return "" if shutil.which(name, path=path) else f"there is no program {name}"


def module(name: str) -> str:
    # Not imported: Megatron changes torch.
    return "" if importlib.util.find_spec(name) else f"the package {name} is not installed"


def megatron_that_reshards() -> str:
    from tests.unit.job.test_frameworks import old_megatron

    return module("megatron") or ("this Megatron-core has no dp_reshardable" if old_megatron() else "")


PROGRAMS = (
    *("apt-get", "aws", "cc", "curl", "dpkg-deb", "fish", "mkfs.btrfs", "mkfs.ext4", "shellcheck"),
    *("systemd-analyze", "systemd-escape", "strace", "uv", "zsh"),
)
MODULES = ("accelerate", "lightning", "torch", "transformers")
OWN_EXTRAS = ("deepspeed", "megatron", "torchtitan")
"""Extras of pyproject.toml that `make test` and `make test-all` do not install: constraints.txt has none of them."""

CAPABILITIES: Dict[str, Capability] = {
    # Of the kernel, the hardware, or what a container was given.
    "root": Capability(root),
    "mounts": Capability(mounts),
    "fuse": Capability(fuse),
    "loop-devices": Capability(loop_devices),
    "btrfs": Capability(btrfs),
    "user-namespaces": Capability(user_namespaces),
    "network-namespaces": Capability(network_namespaces),
    "packet-filter": Capability(packet_filter),
    "fanotify": Capability(fanotify),
    "cgroup-v1": Capability(cgroup_v1),
    "machines": Capability(machines),
    "cuda": Capability(cuda),
    "float8": Capability(float8),
    "access-lists": Capability(access_lists),
    # In no distribution, or of a sweep with something else.
    "pyxis": Capability(pyxis),
    "aws-scripts": Capability(aws_configuration_scripts),
    "debian": Capability(debian),
    "python-3.11": Capability(python_3_11),
    "slurm-of-this-host": Capability(slurm_of_this_host),
    # Where `./setup.sh system` has run, or `make test` itself provides for it.
    "slurm": Capability(slurm, is_installed=True),
    "accounting": Capability(accounting, is_installed=True),
    "machine-packages": Capability(machine_packages, is_installed=True),
    "containers": Capability(containers, is_installed=True),
    "systemd-oracle": Capability(systemd_oracle, is_installed=True),
    "system-python": Capability(system_python, is_installed=True),
    "spank-headers": Capability(spank_headers, is_installed=True),
    "xxhash-library": Capability(xxhash_library, is_installed=True),
    "root-file-system": Capability(root_file_system, is_installed=True),
    "megatron-0.14": Capability(megatron_that_reshards),
    "tensorboard": Capability(partial(module, "tensorboard")),
    "torchao": Capability(partial(module, "torchao")),
    "orjson": Capability(partial(module, "orjson")),
    "disk": Capability(disk, is_installed=True),
    "git-checkout": Capability(git_checkout, is_installed=True),
    "git-history": Capability(git_history, is_installed=True),
    **{name: Capability(partial(program, name), is_installed=True) for name in PROGRAMS},
    **{name: Capability(partial(module, name), is_installed=True) for name in MODULES},
    # Half a gigabyte for one test of how pages look.
    "chromium": Capability(partial(program, "chromium")),
    **{name: Capability(partial(module, name)) for name in OWN_EXTRAS},
}


@lru_cache(maxsize=None)
def lacking(name: str) -> str:
    """Why this machine lacks a capability, in one line without `;`; empty when it has it."""
    return " ".join(CAPABILITIES[name].probe().replace(";", ",").split())


def reason_of(names: Sequence[str]) -> str:
    """Why a test that needs these is skipped; empty when it is not."""
    return "; ".join(_lack(name) for name in names if lacking(name))


def _lack(name: str) -> str:
    source = f" ({INSTALLED})" if CAPABILITIES[name].is_installed else ""
    return f"lacks {name}{source}: {lacking(name)}"


def require(*names: str) -> None:
    """Skip the test unless the machine has all of these."""
    reason = reason_of(names)
    if reason:
        pytest.skip(reason)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture of the test is set up. Raises KeyError for a name that is no capability."""
    require(*(name for mark in item.iter_markers("needs") for name in mark.args))
