"""Where the objects of the tests' own processes lie: in large pages, of which a fork copies a five-hundredth.

The tests fork thousands of children out of processes of some 200 MB. With Python's own arenas, whose pages have 4 KiB,
that took 9 ms of the kernel's time for a child, and 14 ms more in it; in pages of 2 MiB it takes 0.8 and 4.7 ms.
What the tests start has Python's and the C library's own ways.
"""

from __future__ import annotations

import os

IN_LARGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def forget() -> None:
    """For the programs that this process starts; it has read them itself when it began."""
    for name, value in IN_LARGE_PAGES.items():
        if os.environ.get(name) == value:
            del os.environ[name]
