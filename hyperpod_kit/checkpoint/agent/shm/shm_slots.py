"""Shared-memory slots. A slot is two files that outlive every process:

hpk-<uid>-<run hash>-<rank>-<slot>.ctl    control page, then the capture's non-tensor state
hpk-<uid>-<run hash>-<rank>-<slot>.img    byte for byte the shard as it will lie on storage
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
from typing import Any, Iterator, List, NamedTuple, Optional, Set

from hyperpod_kit import environment
from hyperpod_kit.checkpoint.agent.shm import capture_age, control_page
from hyperpod_kit.checkpoint.agent.shm.control_page import CaptureOrigin, Page, SlotState
from hyperpod_kit.checkpoint.repository.read import mapping
from hyperpod_kit.errors import CheckpointError, NotEnoughSharedMemory
from hyperpod_kit.untrusted import by_descriptor, walk
from hyperpod_kit.untrusted.dirfd import mount_id_of, open_path_fd_refusing_mount

EXTRA_ROOM = 256 * 1024
_OTHER = f"or set {environment.HPK_SHM_DIR} to another tmpfs"
_CURES = {
    errno.EFBIG: "ulimit -f unlimited",
    errno.EMFILE: "ulimit -n 65536",
    errno.EROFS: f"mount -o remount,rw /dev/shm, {_OTHER}",
    errno.EACCES: f"chmod 1777 /dev/shm, {_OTHER}",
    errno.EPERM: f"chmod 1777 /dev/shm, {_OTHER}",
    errno.ENOENT: f"mount -t tmpfs tmpfs /dev/shm, {_OTHER}",
}
"""What to do about an error of shared memory."""
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
NAME = re.compile(r"hpk-([0-9]+)-([0-9a-f]{12})-([0-9]{5})-([0-9]{2})\.(ctl|img)")


def run_hash(run_id: str) -> str:
    """The part of a segment's name that tells runs apart: 12 hex digits."""
    return hashlib.blake2b(run_id.encode(), digest_size=6).hexdigest()


class SlotName(NamedTuple):
    """A slot's name, which is also its place in the run."""

    uid: int
    run: str
    rank: int
    slot: int

    def file(self, suffix: str) -> str:
        return f"hpk-{self.uid}-{self.run}-{self.rank:05d}-{self.slot:02d}.{suffix}"


def lock_file_name(uid: int, run: str, rank: int) -> str:
    return f"hpk-{uid}-{run}-{rank:05d}.lock"


def log_file_name(uid: int, run: str, rank: int) -> str:
    return f"hpk-{uid}-{run}-{rank:05d}.log"


def failure_note_file_name(uid: int, run: str, rank: int) -> str:
    """See failure_note."""
    return f"hpk-{uid}-{run}-{rank:05d}.saves"


def own_slot_names(
    folder: str, *, uid: Optional[int] = None, run: Optional[str] = None, rank: Optional[int] = None
) -> List[SlotName]:
    """The slots of ours in `folder`, also those of which only one file is there, sorted. What is another's, or has
    another's file for one of the two, is none, whatever it is called."""
    owned: Set[SlotName] = set()
    foreign: Set[SlotName] = set()
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mount = mount_id_of(handle)
        for entry in os.listdir(handle):
            match = NAME.fullmatch(entry)
            if match is not None:
                name = SlotName(int(match.group(1)), match.group(2), int(match.group(3)), int(match.group(4)))
                if uid in (None, name.uid) and run in (None, name.run) and rank in (None, name.rank):
                    (owned if _is_owned(entry, handle, mount) else foreign).add(name)
    finally:
        os.close(handle)
    return sorted(owned - foreign)


def _is_owned(entry: str, handle: int, mount: str) -> bool:
    try:
        fd = open_path_fd_refusing_mount(entry, handle, mount)
    except OSError:
        return False
    try:
        status = os.fstat(fd)
        return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    finally:
        os.close(fd)


class Slot:
    """One mapped slot. `image` is a view of the shard's bytes, writable."""

    def __init__(self, folder: str, name: SlotName, ctl: Any, img: Any) -> None:
        """`ctl` and `img` are mappings (`mapping.map_file_shared_writable`)."""
        self.folder = folder
        self.name = name
        self._img: Optional[Any] = img
        self._view = mapping.view_of(ctl)
        self.image = mapping.view_of(img)
        self._faulted = False
        current = control_page.read(self._view[: control_page.PAGE])
        if current:
            self._generation = current[0]
        else:
            self._generation = 0

    @property
    def page(self) -> Optional[Page]:
        """The page as it is now; None when the control page is damaged."""
        current = control_page.read(self._view[: control_page.PAGE])
        if current is None:
            return None
        self._generation = current[0]
        return current[1]

    def write_page(self, page: Page) -> None:
        """Make `page` the current one. It comes from Page.transition, except for a new slot and where
        a save begins."""
        control_page.write(self._view[: control_page.PAGE], self._generation + 1, page)
        self._generation += 1

    def transition(self, state: SlotState, *, durable: bool = False, **shard: Any) -> Page:
        """Write the page after one transition, see Page.transition. Raises CheckpointError when it is not legal or
        the page is damaged."""
        now = self.page
        if now is None:
            raise CheckpointError(f"the control page of {self.name.file('ctl')} is damaged")
        page = now.transition(state, durable=durable, **shard)
        self.write_page(page)
        return page

    def seal(self, root: str) -> Page:
        """CAPTURED -> SEALED, with the shard's digest; dated now, unless a flush has done so. Raises as
        `transition`."""
        now = self.page
        if now is None:
            raise CheckpointError(f"the control page of {self.name.file('ctl')} is damaged")
        sealed = now.transition(SlotState.SEALED, root=root)
        if not capture_age.is_dated(sealed):
            with contextlib.suppress(CheckpointError):  # a trainer of a build before 0.1.0 has left no room for it
                return self.write_page_dated_now(sealed)
        self.write_page(sealed)
        return sealed

    def write_page_dated_now(self, page: Page, clock: capture_age.Clock = capture_age.now) -> Page:
        """Make `page` the current one, of a capture that was sealed just now; as it is on the page then."""
        dated = capture_age.dated(page, clock())
        self.write_page(dated)
        self._touch_control_file()
        return dated

    def _touch_control_file(self) -> None:
        """The modification time of the page's file is that of the sealing, for programs of builds before 0.1.0."""
        with contextlib.suppress(OSError):
            path = os.path.join(self.folder, self.name.file("ctl"))
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.utime(fd)
            finally:
                os.close(fd)

    def write_extra(self, data: bytes) -> None:
        """Store the non-tensor state. Raises CheckpointError when it is larger than the room at creation."""
        if len(data) > len(self._view) - control_page.PAGE:
            raise CheckpointError(
                f"the non-tensor state has {len(data)} bytes, "
                f"the slot has room for {len(self._view) - control_page.PAGE}"
            )
        self._view[control_page.PAGE : control_page.PAGE + len(data)] = data

    def read_extra(self, size: int) -> bytes:
        return bytes(self._view[control_page.PAGE : control_page.PAGE + size])

    @property
    def has_no_page_written_yet(self) -> bool:
        """Whether it has no page yet, or half of one: its maker died before a capture could be begun."""
        half = control_page.PAGE // 2
        first, second = self._view[:half], self._view[half : control_page.PAGE]
        return self.page is None and not (any(first) and any(second))

    @property
    def image_and_extra_capacity(self) -> tuple[int, int]:
        """(bytes of image, bytes of extra) that fit."""
        return len(self.image), len(self._view) - control_page.PAGE

    @property
    def image_mapping(self) -> Any:
        """The image's mapping, for torch.frombuffer; what looks into it keeps it."""
        return self._img

    def prefault(self) -> None:
        """Fault the image's pages into this process, once, so that the first copy is as fast as the second."""
        if not self._faulted:
            mapping.fault_in(self._img)
            self._faulted = True

    def close(self) -> None:
        """Unmap; a mapping that a tensor still looks into goes when it goes."""
        self._img = None
        for view in (self._view, self.image):
            view.release()

    def unlink(self) -> None:
        remove(self.folder, self.name)


class OpenSlot(NamedTuple):
    """A slot, and its page as it was read."""

    slot: Slot
    page: Page


def ensure_dated(open_slot: OpenSlot, clock: capture_age.Clock) -> OpenSlot:
    """Write the present time to the page as that of the sealing, when the age of the capture is unknown.

    Only for a process that holds its lock, and knows that its trainer is dead.
    """
    if capture_age.seconds_since_sealing(open_slot.page, clock()) is not None:
        return open_slot
    with contextlib.suppress(CheckpointError):  # no room on the page: it stays until storage takes it
        return open_slot._replace(page=open_slot.slot.write_page_dated_now(open_slot.page, clock))
    return open_slot


def remove(folder: str, name: SlotName) -> None:
    """Remove a slot's files. The control page goes first: an image without one is nobody's."""
    with contextlib.suppress(FileNotFoundError), _open_directory(folder) as there:
        for suffix in ("ctl", "img"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name.file(suffix), dir_fd=there)


def create(folder: str, name: SlotName, size: int, *, extra_room: int = EXTRA_ROOM) -> Slot:
    """Make a FREE slot for a shard of `size` bytes, with its memory reserved.

    Raises NotEnoughSharedMemory, FileExistsError, OSError.
    """
    is_without_control_page_removing_image(folder, name)
    mapped = {}
    try:
        for suffix, length in (("img", size), ("ctl", control_page.PAGE + extra_room)):
            fd = by_descriptor.open_own_or_root_file(os.path.join(folder, name.file(suffix)), _NEW, 0o600)
            try:
                # Reserved now, so that a full /dev/shm is an error here and not a SIGBUS in mid-copy.
                os.posix_fallocate(fd, 0, length)
                mapped[suffix] = mapping.map_file_shared_writable(fd, length)
            finally:
                os.close(fd)
    except OSError as err:
        remove(folder, name)
        if err.errno in (errno.ENOSPC, errno.ENOMEM):
            free = os.statvfs(folder)
            raise NotEnoughSharedMemory(
                f"a slot needs {size} bytes in {folder}, but {free.f_bavail * free.f_frsize} bytes are free",
                hint="hyperpod-kit checkpoint flush --all, fewer slots, or a larger /dev/shm: "
                f"{shared_memory_hint(4 * size)}",
            ) from None
        raise error_with_path_and_remedy(err, os.path.join(folder, name.file("img"))) from None
    slot = Slot(folder, name, mapped["ctl"], mapped["img"])
    slot.write_page(Page(origin=CaptureOrigin(rank=name.rank)))
    return slot


def error_with_path_and_remedy(err: OSError, path: str) -> OSError:
    """The same error with the path that it is about, and with what to do where that is known."""
    cure = _CURES.get(err.errno or 0)
    text = err.strerror or str(err)
    return OSError(err.errno, text if cure is None else f"{text}: {cure}", path)


def shared_memory_hint(size: int) -> str:
    """How to have that much shared memory, in words. A container of docker's or podman's has 64 MB by itself."""
    size_text = f"{max(1, -(-size // (1 << 30)))}g"
    return (
        f"docker run and podman run: --shm-size={size_text}, or --ipc=host for the node's own, which outlives the "
        f"container; on a node: mount -o remount,size={size_text} /dev/shm"
    )


def no_space_error(path: str, err: OSError) -> NotEnoughSharedMemory:
    """The error for a small file of ours that does not fit into shared memory any more."""
    folder = os.path.dirname(path)
    free = os.statvfs(folder)
    return NotEnoughSharedMemory(
        f"{path} cannot be written: {err.strerror}: {free.f_bavail * free.f_frsize} bytes and {free.f_favail} files "
        f"are free in {folder}",
        hint="hyperpod-kit checkpoint flush --all, a larger /dev/shm, or fewer slots",
    )


def is_without_control_page_removing_image(folder: str, name: SlotName) -> bool:
    """Remove an image without a control page, which a crash in `create` left. Returns whether there is no such
    page."""
    if os.path.lexists(os.path.join(folder, name.file("ctl"))):
        return False
    by_descriptor.unlink(os.path.join(folder, name.file("img")), missing_ok=True)
    return True


def lacks_full_size_control_page(folder: str, name: SlotName) -> bool:
    """Whether a crash in `create` left it: there is no control page, or no room for one yet."""
    try:
        return os.lstat(os.path.join(folder, name.file("ctl"))).st_size < control_page.PAGE
    except FileNotFoundError:
        return True


def attach(folder: str, name: SlotName) -> Slot:
    """Map a slot that is there. Raises FileNotFoundError, CheckpointError when it is not a slot, OSError."""
    with _open_directory(folder) as there:
        control = _map_own_file(name.file("ctl"), there, control_page.PAGE)
        image = _map_own_file(name.file("img"), there, 1)
    return Slot(folder, name, control, image)


def _map_own_file(file: str, folder: int, min_bytes: int) -> Any:
    """The mapping of a file of a slot, of `least` bytes. Raises FileNotFoundError, CheckpointError, OSError."""
    fd = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            # Anybody may create files in /dev/shm; only our own say what is to be written where.
            raise CheckpointError(f"{file} belongs to uid {status.st_uid}")
        if status.st_size < min_bytes:
            raise CheckpointError(f"{file} has {status.st_size} bytes")
        return mapping.map_file_shared_writable(fd, status.st_size)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _open_directory(folder: str) -> Iterator[int]:
    """A descriptor of the directory of slots, for `dir_fd=`. Raises UntrustedPlace, OSError."""
    handle = walk.open_traversable(folder)
    try:
        yield handle
    finally:
        os.close(handle)


def attach_each_mappable(folder: str, slot_names: List[SlotName]) -> Iterator[Slot]:
    """The slots of that list that can be mapped; damaged or vanished ones are passed over."""
    for name in slot_names:
        try:
            yield attach(folder, name)
        except (OSError, CheckpointError):
            continue
