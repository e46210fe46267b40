"""Errors of storage that may pass: a mount that is repaired, a server that fails over, a disk that reads at the second
try. A read that ends in one proves nothing, and the same read may succeed a moment later.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno

PASSING = frozenset(
    (
        errno.ENOTCONN,
        errno.ESTALE,
        errno.EIO,
        errno.ETIMEDOUT,
        errno.ENODEV,
        errno.ENXIO,
        errno.EREMOTEIO,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ECONNABORTED,
        errno.ECONNRESET,
        errno.ECONNREFUSED,
        errno.ESHUTDOWN,
    )
)
"""What a mount says that is gone, or on its way back."""
