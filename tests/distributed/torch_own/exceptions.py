"""torch's tests that do not pass with our reader and writer, and why each does not apply."""

from __future__ import annotations

_NEVER_OVERWRITES = (
    "expects that overwrite=False refuses a second save into a directory; here each save is an attempt of its own "
    "beside the earlier ones, and nothing is ever overwritten"
)

EXCEPTIONS = {
    ("e2e/test_e2e_save_and_load.py", "TestE2ESaveAndLoad.test_overwrite"): _NEVER_OVERWRITES,
    ("test_fsspec.py", "TestFSSpec.test_overwrite"): _NEVER_OVERWRITES,
}
"""(file, test) -> the reason."""
