#!/usr/bin/env python3
"""Runs this bundle by hand, with the arguments of AWS's own lifecycle_script.py.

    python3 lifecycle_script.py -rc RESOURCE_CONFIG [-pp PROVISIONING_PARAMETERS] [--mode MODE]

HyperPod itself starts on_create.sh or on_init_complete.sh; this hands over to the same script, so that a bundle is
verified and installed in one way only. Standard library only, Python 3.8.
"""

import argparse
import json
import os
import sys

DEFAULT_RESOURCE_CONFIG = "/opt/ml/config/resource_config.json"
MODES = ("on_create", "on_init_complete", "ami_only")


def mode_of(bundle: str) -> str:
    """The mode that a bundle was rendered for. It is not verified yet; a damaged one ends in the entry script."""
    try:
        with open(os.path.join(bundle, "node_config.json"), encoding="utf-8") as stream:
            mode = json.load(stream)["lifecycle_mode"]
    except (OSError, ValueError, KeyError, TypeError):
        return MODES[0]
    return mode if mode in MODES else MODES[0]


def main() -> int:
    """Replaces this process by the entry script; returns 2 without a resource config."""
    bundle = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description="Run this lifecycle bundle by hand.")
    parser.add_argument(
        "-rc",
        "--resource_config",
        metavar="FILE",
        default=os.environ.get("SAGEMAKER_RESOURCE_CONFIG_PATH", DEFAULT_RESOURCE_CONFIG),
    )
    parser.add_argument(
        "-pp",
        "--provisioning_parameters",
        metavar="FILE",
        help="accepted and not read, so it need not exist: node_config.json holds what it would say",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        default=mode_of(bundle),
        help="who set up Slurm and FSx: this bundle (on_create), or HyperPod or other scripts before "
        "it (on_init_complete); default: %(default)s, what the bundle was rendered for",
    )
    args = parser.parse_args()
    if not os.path.isfile(args.resource_config):
        print(f"error: {args.resource_config}: no such file", file=sys.stderr)
        return 2
    os.environ["SAGEMAKER_RESOURCE_CONFIG_PATH"] = os.path.abspath(args.resource_config)
    os.environ["HPK_MODE"] = args.mode
    os.execv("/bin/bash", ["/bin/bash", os.path.join(bundle, "on_create.sh")])


if __name__ == "__main__":
    sys.exit(main())
