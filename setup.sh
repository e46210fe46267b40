#!/usr/bin/env bash
# Sets up what the make targets need, and skips what is there.
#   ./setup.sh system [faults]  Debian packages for the rehearsal (root only; elsewhere says what is missing)
#   ./setup.sh venv NAME...     .venv with hyperpod-kit, its rehearsal and its lab, and the extras (admin torch data) and
#                               groups (test frameworks check docs dist) of pyproject.toml that are named: what
#                               constraints.txt says, by digest
set -euo pipefail
cd "$(dirname "$0")"

say() { printf 'setup: %s\n' "$*"; }

# What the rehearsal runs: machines, their image, their network; a Slurm, which tests start for themselves on loopback, with
# gcc and headers for the SPANK plugin; make, libbsd and column for enroot and pyxis, where their sources are; the shells
# whose completion is tested; xxHash's library, curl, mkfs.ext4, mkfs.btrfs and nft, which tests ask as nodes do; git for the checks.
# With all of them no test of `make test` is skipped for want of a program: that would count as failed.
SYSTEM_PACKAGES=(systemd systemd-container mmdebstrap squashfs-tools iproute2 openssh-client util-linux procps shellcheck
                 slurmctld slurmd slurm-client munge gcc make libc6-dev libslurm-dev libbsd-dev bsdextrautils
                 python3 python3-venv ca-certificates zsh fish libxxhash0 curl e2fsprogs btrfs-progs mount git
                 nftables iptables strace)
# What one row of `make faults` needs besides: QOS exist only with accounting.
FAULTS_PACKAGES=(mariadb-server slurmdbd)

system() { # [faults]
  if [ "${1:-}" = faults ]; then SYSTEM_PACKAGES+=("${FAULTS_PACKAGES[@]}"); fi
  if ! command -v dpkg-query >/dev/null; then
    say "no dpkg here: install by hand what provides ${SYSTEM_PACKAGES[*]}"
    return 0
  fi
  local missing=() package
  for package in "${SYSTEM_PACKAGES[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    say "system packages: all there"
  elif [ "$(id -u)" -ne 0 ]; then
    say "not root: the rehearsal needs these packages, its tests are skipped without them: ${missing[*]}"
  else
    say "installing ${missing[*]}"
    # apt's services must not start on the admin's machine just because a package brings them.
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    local apt=(apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
    "${apt[@]}" update >/dev/null
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null
  fi
}

# A root from debootstrap has no /etc/hosts, and Slurm on loopback then finds nobody.
hosts() {
  getent hosts localhost >/dev/null || say "localhost has no address: echo '127.0.0.1 localhost' >>/etc/hosts"
}

interpreter() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  say "no Python 3.11 or newer with venv found: install python3-venv, or name one with PYTHON=" >&2
  return 1
}

# Lines of constraints.txt for these extras and groups, and those that each needs.
locked() { # NAME...
  awk -v wanted=" base $* " '/^# for:/ { keep = 0; for (at = 3; at <= NF; at++) if (index(wanted, " " $at " ")) keep = 1; next }
    keep && !/^#/ && NF' constraints.txt
}

venv() { # NAME...
  local name stamp python names torch
  for name in "$@"; do
    grep -q "^# for:.* $name\( \|\$\)" constraints.txt || { say "constraints.txt knows nothing of $name" >&2; return 2; }
  done
  # One stamp for each set of names: `make demo` must not wait for torch just because the tests want it.
  stamp=.venv/.ready-$(cat pyproject.toml rehearsal/pyproject.toml lab/pyproject.toml constraints.txt setup.sh | sha256sum | cut -c1-16)-$(IFS=-; printf '%s' "$*")
  [ -e "$stamp" ] && return 0
  if [ ! -x .venv/bin/python ]; then
    python=$(interpreter)
    say "creating .venv with $("$python" --version)"
    "$python" -m venv .venv
  fi
  local install=(.venv/bin/python -m pip install -qq --disable-pip-version-check)
  say "installing hyperpod-kit into .venv, with $*"
  names=$(mktemp)
  locked "$@" | grep -v '^torch==' >"$names"
  "${install[@]}" --require-hashes --no-deps -r "$names"
  rm -f "$names"
  # It has no digest: see constraints.txt. What it needs is there by now, but for the CUDA build's own libraries.
  torch=$(locked "$@" | grep '^torch==' || true)
  [ -z "$torch" ] || "${install[@]}" "$torch"
  "${install[@]}" --no-deps --no-build-isolation -e . -e rehearsal -e lab
  : > "$stamp"
}

case ${1:-} in
  system) shift; system "$@"; hosts ;;
  venv) shift; venv "$@" ;;
  *) sed -n '2,7p' "$0"; exit 2 ;;
esac
