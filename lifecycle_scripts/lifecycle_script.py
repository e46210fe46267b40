#!/usr/bin/env python3
"""Runs this bundle by hand, with the arguments of AWS's own lifecycle_script.py.

    python3 lifecycle_script.py -rc RESOURCE_CONFIG [-pp PROVISIONING_PARAMETERS] [--mode on_create|on_init_complete]

HyperPod itself starts on_create.sh or on_init_complete.sh; this hands over to the same script, so that a bundle is
verified and installed in one way only. Standard library only, Python 3.8.
"""

import argparse
import os
import sys

DEFAULT_RESOURCE_CONFIG = "/opt/ml/config/resource_config.json"


def main() -> int:
    """Replaces this process by the entry script; returns 2 when a file that was named does not exist."""
    parser = argparse.ArgumentParser(description="Run this lifecycle bundle by hand.")
    parser.add_argument("-rc", "--resource_config", metavar="FILE",
                        default=os.environ.get("SAGEMAKER_RESOURCE_CONFIG_PATH", DEFAULT_RESOURCE_CONFIG))
    parser.add_argument("-pp", "--provisioning_parameters", metavar="FILE",
                        help="accepted for compatibility: the bundle's node_config.json already holds what it says")
    parser.add_argument("--mode", choices=("on_create", "on_init_complete"), default="on_create")
    args = parser.parse_args()
    for path in (args.resource_config, args.provisioning_parameters):
        if path is not None and not os.path.isfile(path):
            print(f"error: {path}: no such file", file=sys.stderr)
            return 2
    os.environ["SAGEMAKER_RESOURCE_CONFIG_PATH"] = os.path.abspath(args.resource_config)
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{args.mode}.sh")
    os.execv("/bin/bash", ["/bin/bash", script])


if __name__ == "__main__":
    sys.exit(main())
