"""Memory of samples that nobody has any more stays with the process, for the next ones.

glibc gives the end of the heap back to the kernel once more than 128 KiB of it are free, and takes blocks of 128 KiB
and more from the kernel each time. A batch of long samples is both: each next one gets new pages, every one of which is
cleared first, which takes several times as long as to read what goes into it.

Both limits grow by themselves: to the size of the largest block so far that was the kernel's and was freed, up to 32
MiB, and to twice that. So one such block is taken and freed at once. Nobody touches it, so it costs nothing. Who has
set these limits (`GLIBC_TUNABLES`, `MALLOC_*`) has them as they are, and other C libraries go by other rules.
"""

from __future__ import annotations

_BLOCK_BYTES = (32 << 20) - (64 << 10)


def keep_freed_memory() -> None:
    """Have this process, and those that it forks, keep up to 64 MiB of freed memory at the end of the heap."""
    bytes(_BLOCK_BYTES)
