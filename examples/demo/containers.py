"""enroot and pyxis for the nodes of a rehearsal, and three small images to run in them.

HPK_CONTAINER_SOURCES names the directory that holds their sources and a build.sh; without it, shared/third_party beside
the checkout. Where it holds none, or is "stand-in", nodes get our stand-in of pyxis.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Iterator, List, Optional

from driver import Driver, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
VARIABLE = "HPK_CONTAINER_SOURCES"
IMAGES = "/opt/images"
"""Where nodes find PYTHON, PLAIN and SH."""

PYTHON, PLAIN, SH = "python.sqsh", "plain.sqsh", "sh.sqsh"
"""With Python and bash; with bash and without Python; with neither."""

PLUGIN = "/usr/lib/slurm/spank_pyxis.so"
STAND_IN = REPOSITORY / "rehearsal/hyperpod_rehearsal/standins/pyxis/plugin.c"
PACKAGES = ("squashfs-tools", "liblzo2-2", "bsdextrautils")
"""What enroot calls and the node image lacks; the host's files fit, for the image is of the host's distribution."""

PLUGSTACK = "/opt/slurm/etc/plugstack.conf"

LIBRARIES = ("libc6", "libstdc++6", "libgcc-s1", "zlib1g")
"""What a torch from the package index expects of a system."""

KEPT_SECONDS = 24 * 3600.0
"""A build that no run has asked for so long is removed."""

TOOLS = ("sh", "ls", "cat", "env", "id", "sleep", "grep", "kill", "true", "mkdir", "rm")
ENROOT_CONF = """\
ENROOT_RUNTIME_PATH /run/enroot/user-$(id -u)
ENROOT_CACHE_PATH /var/lib/enroot/cache-$(id -u)
ENROOT_DATA_PATH /var/lib/enroot/data-$(id -u)
ENROOT_TEMP_PATH /var/tmp
"""
TMPFILES = "d /run/enroot 1777 root root -\nd /run/pyxis 0755 root root -\nd /var/lib/enroot 1777 root root -\n"


def sources() -> Path:
    """The directory of the sources, whether it is there or not."""
    return Path(os.environ.get(VARIABLE) or REPOSITORY.parent / "shared" / "third_party")


def real() -> bool:
    """Whether it is pyxis itself."""
    return (sources() / "build.sh").is_file()


def missing() -> Optional[str]:
    """Why there can be no containers here; None when there can."""
    programs = ["cc", "mksquashfs", "unsquashfs", *(["make", "column"] if real() else [])]
    includes = ["slurm/spank.h", *(["bsd/stdlib.h"] if real() else [])]
    lacking = [name for name in programs if not shutil.which(name)]
    headers = [name for name in includes if not Path("/usr/include", name).exists()]
    return f"./setup.sh system has not installed {', '.join(lacking + headers)}" if lacking or headers else None


def build(cache: Path) -> Path:
    """A directory to lay over every node's image (`rehearse up --tree`). Kept in `cache` by what it was made from."""
    given = sorted(path for path in sources().iterdir() if path.is_file()) if real() else [STAND_IN]
    made_from = [*given, Path(__file__)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in made_from)).hexdigest()[:16]
    target = cache / f"containers-{digest}"
    if target.exists():
        os.utime(target)
        return target
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if real():
            _run("bash", str(sources() / "build.sh"), str(partial), timeout=300)
        else:
            plugin = partial / PLUGIN.lstrip("/")
            plugin.parent.mkdir(parents=True)
            _run("cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(plugin), str(STAND_IN))
        for path in _files_of(*(PACKAGES if real() else PACKAGES[:-1])):
            _copy(path, partial)
        _write(partial, "/etc/enroot/enroot.conf", ENROOT_CONF)
        _write(partial, "/usr/lib/tmpfiles.d/enroot.conf", TMPFILES)
        images = partial / IMAGES.lstrip("/")
        images.mkdir(parents=True)
        for name, programs in ((PYTHON, ("bash", "python3")), (PLAIN, ("bash",)), (SH, ())):
            _image(images / name, [*TOOLS, *programs], partial.with_name(f"{partial.name}.root"))
        partial.chmod(0o755)
        if not target.exists():
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    os.utime(target)
    for old in cache.glob("containers-*"):
        if old != target and time.time() - old.stat().st_mtime > KEPT_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    return target


def _run(*argv: str, timeout: float = 60) -> str:
    done = subprocess.run(
        argv, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout
    )
    assert done.returncode == 0, f"{' '.join(argv)} exited {done.returncode}: {done.stdout[-2000:]}"
    return done.stdout


def _files_of(*packages: str) -> Iterator[Path]:
    """Programs and libraries."""
    for line in _run("dpkg", "-L", *packages).splitlines():
        if re.search(r"/s?bin/[^/]+$|/lib/[^/]+-linux-gnu/[^/]+\.so(\.\d+)*$", line) and Path(line).is_file():
            yield Path(line)


def _copy(path: Path, root: Path) -> None:
    """A file to its real place in a root: /bin and /lib are links to /usr's there too."""
    place = path.parent.resolve() / path.name
    target = root / str(place).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(path, target)


def _write(root: Path, path: str, text: str) -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def _libraries(paths: List[Path]) -> List[Path]:
    """Everything that the loader maps for these."""
    done = subprocess.run(
        ["ldd", *map(str, paths)], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60
    )
    return sorted({Path(found) for found in re.findall(r"(/[^\s:]+\.so[^\s:]*) \(0x", done.stdout)})


def _image(target: Path, programs: List[str], root: Path) -> None:
    """A root file system of just these programs, as a squashfs. No device nodes: a user cannot unpack them."""
    shutil.rmtree(root, ignore_errors=True)
    try:
        for name in ("usr/bin", "usr/lib", "usr/lib64", "etc", "proc", "sys", "dev", "tmp", "run", "var", "home"):
            (root / name).mkdir(parents=True)
        for name in ("bin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        (root / "var/run").symlink_to("/run")
        found = [Path(shutil.which(name, path="/usr/bin:/bin") or name) for name in programs]
        binaries = list(found)
        if "python3" in programs:
            # The system's, as on the nodes; its own modules and nothing that was installed beside them.
            version = _run("/usr/bin/python3", "-c", "import sys; print('python%d.%d' % sys.version_info[:2])").strip()
            library = Path("/usr/lib", version)
            shutil.copytree(
                library,
                root / str(library).lstrip("/"),
                symlinks=True,
                ignore=shutil.ignore_patterns(
                    "__pycache__", "test", "idlelib", "tkinter", "config-*", "dist-packages", "*.md", "sitecustomize.py"
                ),
            )
            binaries += sorted(library.glob("lib-dynload/*.so"))
            found += [path for path in _files_of(*LIBRARIES) if ".so" in path.name]
        for path in [*found, *_libraries(binaries)]:
            _copy(path, root)
        for path in root.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        _run(
            "mksquashfs",
            str(root),
            str(target),
            "-comp",
            "zstd",
            "-Xcompression-level",
            "3",
            "-noappend",
            "-no-progress",
            "-quiet",
            "-all-root",
            timeout=120,
        )
    finally:
        shutil.rmtree(root, ignore_errors=True)


def add_pyxis(driver: Driver) -> None:
    """Put it into the cluster's plugstack.conf, as whoever installs it does: behind our block; it is in all nodes."""
    line = f"required {PLUGIN} runtime_path=/run/pyxis"
    driver.on("controller", f"echo {shlex.quote(line)} >>{PLUGSTACK}")
    reconfigure(driver)


def reconfigure(driver: Driver) -> None:
    """Every slurmd reads what the controller hands out; pyxis has a part in slurmd that only a start runs."""
    driver.on("controller", "scontrol reconfigure")
    for node in driver.nodes():
        if node["group"] == "worker-group":
            driver.on(node["instance_id"], "systemctl restart slurmd")
    wait_until(
        "idle nodes", lambda: driver.on("controller", "sinfo -h -o %t | sort -u").split() == ["idle"], timeout=180
    )
