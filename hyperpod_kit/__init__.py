"""hyperpod-kit: storage, auto-resume and checkpoints for Slurm clusters, first of all SageMaker HyperPod."""

import os

# As type checkers take it; importing typing would cost each of the timers' programs its start-up.
TYPE_CHECKING = False

# What came by /opt/hyperpod-kit/current keeps to its bundle when another one is installed: modules that are imported
# later, of an agent or a rank's wrapper that has run for days, must not be those of another bundle.
__path__ = [os.path.realpath(entry) for entry in __path__]

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        # Found out when it is asked for: a timer's program never asks.
        if name == "__version__":
            from hyperpod_kit.version import version

            return version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
