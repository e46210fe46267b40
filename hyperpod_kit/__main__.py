"""`python -m hyperpod_kit …`, the same as `hyperpod-kit …`."""

from __future__ import annotations

from hyperpod_kit.cli.main import main

if __name__ == "__main__":
    main()
