#!/bin/bash
# HyperPod runs this after it has configured Slurm and FSx itself (OnInitComplete).
# The work is that of on_create.sh; only what is already HyperPod's is left alone.
set -euo pipefail
HPK_MODE=on_init_complete exec /bin/bash "$(dirname "${BASH_SOURCE[0]}")/on_create.sh"
