"""The node image: a squashfs of the host's own distribution, built once and kept by the digest of what went into it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Callable, Iterator, Optional, Sequence, Tuple

from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.run import LocalRunner
from hyperpod_kit.system.file_lock import lock_exclusively_within, try_lock
from hyperpod_kit.system.wait import fixed_pause
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.machines import apt_release, apt_sources, host_mounts, image_root, two_slurms
from hyperpod_rehearsal.machines.two_slurms import SecondSlurm
from hyperpod_rehearsal.records.profiles import STOCK, Profile

PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "libpam-systemd",
    "udev",
    "kmod",
    "openssh-server",
    "openssh-client",
    "sudo",
    "python3",
    "fuse3",
    "munge",
    "slurmd",
    "slurmctld",
    "slurm-client",
    "slurmdbd",
    "iproute2",
    "iputils-ping",
    "curl",
    "ca-certificates",
    "jq",
    "nftables",
    "procps",
    "psmisc",
    "less",
    "netbase",
    "util-linux",
    "gettext-base",
    # A bundle builds its SPANK plugin on the node, as on a real one.
    "gcc",
    "libc6-dev",
    "libslurm-dev",
)
SPLIT_USR = ("bullseye",)
"""Releases whose /sbin is a directory unless it is a link from the start; the layer over the image knows /usr/sbin."""
MERGE_USR = 'cd "$1"; for name in bin sbin lib lib64; do mkdir -p "usr/$name"; ln -s "usr/$name" .; done'
BUILD_DEADLINE = 1500.0
KEPT_IMAGES = 6

Progress = Callable[[str], None]


def _read_host_apt_options() -> list[str]:
    """Proxy and date settings that this host's apt needs to reach its sources."""
    done = LocalRunner().run(["apt-config", "dump", "Acquire"], timeout=30, check=False)
    relevant = re.compile(r'^Acquire::(https?::[^ ]+|Check-Valid-Until|Check-Date|Retries) "[^"]+";$')
    return [line for line in done.stdout.splitlines() if relevant.match(line)]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what is in the image. `customize`: digest of the code that shapes the root.

    `day`: of the archive of a release that changes daily (apt_release.py), "" of any other. `second`: the Slurm beside
    the image's own, None for one alone.
    """

    codename: str
    architecture: str
    packages: Tuple[str, ...]
    sources: Tuple[str, ...]
    customize: str
    day: str = ""
    second: Optional[SecondSlurm] = None

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits over all fields but the day, which stands beside it in the file's name."""
        fields = {**asdict(self), "day": ""}
        if self.second is None:
            del fields["second"]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

    def image_path(self, cache: Path) -> Path:
        """Return the path of the image, built or not."""
        return cache / f"node-{self.codename}-{self.digest}{'-' if self.day else ''}{self.day}.squashfs"


def recipe_for_release(release: str = "", profile: Profile = STOCK) -> Recipe:
    """The image of a release of this machine's distribution, of its own when none is named, with the profile's Slurms.

    Raises RehearsalError on a distribution or release that is not supported.
    """
    host = apt_sources.detect_supported_distribution()
    codename = release or profile.release or host.codename
    second: Optional[SecondSlurm] = None
    if profile.second_release:
        second = SecondSlurm(
            profile.slurm,
            profile.second_slurm,
            profile.second_release,
            tuple(apt_sources.apt_sources_for_release(profile.second_release, host)),
            hashlib.sha256(Path(two_slurms.__file__).read_bytes()).hexdigest(),
        )
    return Recipe(
        codename,
        os.uname().machine,
        PACKAGES,
        tuple(apt_sources.apt_sources_for_release(codename, host)),
        hashlib.sha256(Path(image_root.__file__).read_bytes()).hexdigest(),
        second=second,
    )


def _with_archive_timestamp_or_newest_built(recipe: Recipe, cache: Path, progress: Progress) -> Recipe:
    """The recipe with the day of its archive; of the newest image that is there when the mirror does not say it."""
    archive = recipe.second or recipe
    try:
        return replace(
            recipe,
            day=apt_release.fetch_archive_timestamp_if_changing(archive.codename, archive.sources, LocalRunner()),
        )
    except RehearsalError as err:
        built = sorted(
            path.stem.rpartition("-")[2] for path in cache.glob(f"{recipe.image_path(cache).stem}-*.squashfs")
        )
        if not built:
            raise
        progress(f"{err.message}; the image of {apt_release.format_archive_date(built[-1])} is taken")
        return replace(recipe, day=built[-1])


@contextmanager
def _builder_lock(cache: Path, progress: Progress) -> Iterator[None]:
    with by_descriptor.open_stream_for_writing(cache / "image.lock", "w") as handle:
        if not try_lock(handle.fileno()):
            progress("waiting for another image build")
            if not lock_exclusively_within(handle.fileno(), BUILD_DEADLINE, fixed_pause(0.5)):
                raise RehearsalError(f"another image build holds {cache / 'image.lock'}")
        yield


def _run_build_command_reporting_progress(argv: list[str], progress: Progress, log: Path) -> None:
    """Run a long build command, report its headlines as progress, write all output to `log`. Raises RehearsalError."""
    # Were this process killed, nobody would end the build. In namespaces of its own all of it goes at once then, with
    # what it has mounted.
    argv_tied = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "--",
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--",
        *argv,
    ]
    with by_descriptor.open_stream_for_writing(log, "ab") as sink:
        proc = subprocess.Popen(
            argv_tied,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        overdue = threading.Timer(BUILD_DEADLINE, os.killpg, (proc.pid, signal.SIGKILL))
        overdue.start()
        try:
            assert proc.stderr is not None
            for line in proc.stderr:
                sink.write(line.encode())
                sink.flush()
                if line.startswith("I: "):
                    progress(line[3:].strip())
            code = proc.wait(timeout=30)
        except BaseException:
            # Ctrl-C reaches only this process: the build has a session of its own.
            with suppress(ProcessLookupError):
                os.killpg(proc.pid, signal.SIGTERM)
            try:
                proc.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(proc.pid, signal.SIGKILL)
                proc.wait(timeout=20)
            raise
        finally:
            overdue.cancel()
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        raise RehearsalError(f"`{argv[0]}` exited {code} while building the node image:\n{tail}", hint=f"less {log}")


def _bootstrap_root(
    root: Path,
    codename: str,
    entries: Sequence[str],
    packages: Sequence[str],
    progress: Progress,
    log: Path,
    variant: str = "minbase",
) -> None:
    sources = root.parent / f"{root.name}.list"
    by_descriptor.write_text(sources, "\n".join(entries) + "\n")
    argv = [
        "mmdebstrap",
        f"--variant={variant}",
        "--format=directory",
        f"--include={','.join(packages)}",
        '--aptopt=Acquire::Languages "none"',
        *(f"--aptopt={option}" for option in _read_host_apt_options()),
        "--dpkgopt=force-unsafe-io",
    ]
    if codename in SPLIT_USR:
        argv.append(f"--setup-hook={MERGE_USR}")
    for path in ("man", "doc", "locale", "info"):
        argv.append(f"--dpkgopt=path-exclude=/usr/share/{path}/*")
    argv += [codename, str(root), str(sources)]
    _run_build_command_reporting_progress(argv, progress, log)


def _add_second_slurm(root: Path, second: SecondSlurm, progress: Progress, log: Path) -> None:
    progress(f"adding Slurm {second.version} of {second.codename}")
    unpacked = root.parent / "second"
    _bootstrap_root(
        unpacked, second.codename, second.sources, two_slurms.PACKAGES, lambda text: None, log, variant="extract"
    )
    two_slurms.lay_out(root, unpacked, second, LocalRunner())


def _remove_stale_builds(cache: Path) -> None:
    for path in cache.glob("build-*"):
        # Never remove what is mounted there: it may be this machine's own /proc.
        if not host_mounts.unmount_below_and_list_remaining(path.absolute(), LocalRunner()):
            by_descriptor.remove_tree(path, ignore_errors=True)


def _delete_oldest_images(cache: Path) -> None:
    """Delete all but the images used last; one that is mounted goes on working without its name."""
    images = sorted(cache.glob("node-*.squashfs"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in images[KEPT_IMAGES:]:
        by_descriptor.unlink(path, missing_ok=True)


def ensure_image_built(
    cache: Path, progress: Progress = lambda text: None, release: str = "", profile: Profile = STOCK
) -> Path:
    """The image of a release (the profile's, or this host's own, when none is named), built if it is not there yet
    (about a minute; two with a second Slurm).

    Needs root.

    One builder at a time; the file appears by a rename when it is complete. Raises RehearsalError with the end of
    the build's log; the whole log stays at <cache>/image-build.log.
    """
    recipe = _with_archive_timestamp_or_newest_built(recipe_for_release(release, profile), cache, progress)
    target = recipe.image_path(cache)
    if target.exists():
        by_descriptor.set_times(target)
        return target
    by_descriptor.make_directories(cache)
    with _builder_lock(cache, progress):
        if target.exists():
            return target
        _remove_stale_builds(cache)
        log = cache / "image-build.log"
        by_descriptor.write_bytes(log, b"")
        work = Path(tempfile.mkdtemp(prefix="build-", dir=cache))
        by_descriptor.set_mode(work, 0o755)  # apt drops to its own user and must reach the root below
        try:
            root = work / "root"
            _bootstrap_root(root, recipe.codename, recipe.sources, recipe.packages, progress, log)
            progress("shaping it like a HyperPod node")
            image_root.customize(root, LocalRunner())
            if recipe.second is not None:
                _add_second_slurm(root, recipe.second, progress, log)
            progress("packing the squashfs")
            packed = work / "image.squashfs"
            _run_build_command_reporting_progress(
                [
                    "mksquashfs",
                    str(root),
                    str(packed),
                    "-comp",
                    "zstd",
                    "-Xcompression-level",
                    "3",
                    "-noappend",
                    "-no-progress",
                    "-quiet",
                ],
                progress,
                log,
            )
            by_descriptor.rename(packed, target)
            _delete_oldest_images(cache)
        finally:
            by_descriptor.remove_tree(work, ignore_errors=True)
    return target
