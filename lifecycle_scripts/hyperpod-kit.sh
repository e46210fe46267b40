#!/bin/bash
# bin/hyperpod-kit of an installed bundle: the vendored program on the system's Python, isolated from everything else.
set -euo pipefail
# -f: a command that has started keeps to its own bundle, also while `current` is switched to another one.
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
exec /usr/bin/python3 -I -S "${here%/*}/lib" "$@"
