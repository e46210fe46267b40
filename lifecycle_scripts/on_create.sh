#!/bin/bash
# HyperPod runs this as root on every node that it creates (OnCreate), from the directory the bundle was downloaded to.
#
#   verify every byte -> unpack to /opt/hyperpod-kit/<bundle_id> -> switch `current` -> `hyperpod-kit node apply`
#
# Nothing of the bundle is executed before it is verified, and nothing refers to the download directory afterwards:
# it may be gone after a reboot. Safe to run again. HPK_ROOT prefixes every path and is for tests and the sandbox only.
set -euo pipefail
export LC_ALL=C
umask 022

ROOT=${HPK_ROOT:-}
MODE=${HPK_MODE:-on_create}
BUNDLE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
HOME_DIR=$ROOT/opt/hyperpod-kit
LOG=$ROOT/var/log/provision/provisioning.log
STEP=start
STARTED=$(date +%s%3N)
# No step inside may take this long; this bounds what nobody thought of.
readonly TOTAL_SECONDS=1500
# An earlier run that was killed may have left the program at work; two at once are never right.
readonly LOCK_SECONDS=300

mkdir -p "${LOG%/*}"
exec 3>&1

# One line on standard output, one JSON line in the only file that HyperPod ships to CloudWatch.
report() { # status message hint
    local now text hint
    now=$(date +%s%3N)
    text=$(printf %s "${2:-}" | tr '\\"\n\t\r' "/' " | tr -d '\000-\037')
    hint=$(printf %s "${3:-}" | tr '\\"\n\t\r' "/' " | tr -d '\000-\037')
    printf '{"ts": "%s", "node": "%s", "role": "", "step": "%s", "status": "%s", "duration_ms": %d, "error": "%s", "hint": "%s"}\n' \
        "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$(uname -n)" "$STEP" "$1" "$((now - STARTED))" "$text" "$hint" >>"$LOG"
    printf 'hyperpod-kit: %s: %s%s\n' "$STEP" "$1" "${2:+: $2}" >&3
    STARTED=$now
}

# CloudWatch must get the last lines before HyperPod takes the node away: on disk, then a pause, then the bad news.
fail() { # code message hint
    trap - ERR
    report failed "$2" "${3:-}"
    timeout 20 sync -f "$LOG" || true
    local pause
    # The file may be the one that is missing or damaged: then the usual pause, and never one of hours.
    pause=$(sed -n 's/^ *"failure_pause": *\([0-9]\{1,3\}\(\.[0-9]*\)\{0,1\}\),\{0,1\}$/\1/p' "$BUNDLE/node_config.json" 2>/dev/null | head -n 1) || true
    sleep "${pause:-60}"
    exit "$1"
}
trap 'fail 1 "line $LINENO: \`$BASH_COMMAND\` failed"' ERR

# Names that an S3 key, a URL, a shell and sha256sum read alike; none is absolute, and none leads out of the bundle.
readonly NAME='[A-Za-z0-9_][A-Za-z0-9._@+~-]*'
readonly ARCHIVE=lib.tar.gz

files_of() { # every file below $1, but the two that carry the sums and what Python leaves in an installed copy
    local except=()
    [[ $1 == "$HOME_DIR"/* ]] && except=(-name __pycache__ -prune -o)
    (cd "$1" && find . "${except[@]}" ! -type d ! -path ./SHA256SUMS ! -path ./bundle.json -print | cut -c3- | sort)
}

# A bundle is a download, with the files below lib/ in an archive, or an installed copy, where they lie unpacked.
# Of both, each function says the first thing that is wrong on standard output, or nothing.
verify() { # directory
    local problem
    problem=$(verify_sums "$1")
    if [[ -n $problem ]]; then
        echo "$problem"
    elif [[ -e $1/$ARCHIVE || ! -e $1/lib ]]; then
        verify_download "$1"
    else
        verify_files "$1" "$(cat "$1/SHA256SUMS")"
    fi
}

verify_sums() { # directory
    local bad
    [[ -s $1/SHA256SUMS ]] || { echo "SHA256SUMS is missing"; return; }
    bad=$(grep -Evxm 1 "[0-9a-f]{64}  $NAME(/$NAME)*" "$1/SHA256SUMS") || true
    [[ -z $bad ]] || { echo "SHA256SUMS has the line \"$bad\", which names no file of a bundle"; return; }
    bad=$(cut -c67- "$1/SHA256SUMS" | sort | uniq -d | head -n 1)
    [[ -z $bad ]] || echo "$bad is listed twice in SHA256SUMS"
}

verify_files() { # directory, the lines of its SHA256SUMS that count, a name that has no line
    local bad
    bad=$(comm -13 <(printf '%s\n' "$(cut -c67- <<<"$2")" "${3:-}" | sort) <(files_of "$1") | head -n 1) || true
    [[ -z $bad ]] || { echo "$bad is not listed in SHA256SUMS"; return; }
    bad=$(find "$1" -type l -print -quit)
    [[ -z $bad ]] || { echo "$bad is a symbolic link"; return; }
    bad=$( (cd "$1" && timeout 300 sha256sum -c --strict --quiet <<<"$2" 2>&1) | head -n 1) || true
    [[ -z $bad ]] || echo "$bad"
}

verify_download() { # directory
    local problem
    [[ -f $1/$ARCHIVE && ! -L $1/$ARCHIVE ]] || { echo "$ARCHIVE is missing, or is not a plain file"; return; }
    [[ ! -e $1/lib ]] || { echo "lib lies beside $ARCHIVE, which holds it"; return; }
    problem=$(verify_files "$1" "$(grep -Ev '^.{66}lib/' "$1/SHA256SUMS")" "$ARCHIVE")
    [[ -n $problem ]] || problem=$(verify_archive "$1")
    [[ -n $problem ]] || problem=$(verify_members "$1")
    echo "$problem"
}

# The archive is opened only when its digest is right: that of the tar in it, since another zlib compresses otherwise.
verify_archive() { # directory
    local problem expected actual
    problem=$(timeout 300 gzip -tq <"$1/$ARCHIVE" 2>&1) || { echo "$ARCHIVE is damaged: ${problem:-gzip -t refuses it}"; return; }
    grep -Eqx '[0-9a-f]{64}  lib\.tar' "$1/lib.tar.sha256" || { echo "lib.tar.sha256 is missing, or has no digest"; return; }
    expected=$(cut -c-64 "$1/lib.tar.sha256")
    actual=$(timeout 300 gzip -dc <"$1/$ARCHIVE" | sha256sum | cut -c-64)
    [[ $actual == "$expected" ]] || echo "$ARCHIVE is not the archive of this bundle: expected sha256 $expected of its tar, found $actual"
}

verify_members() { # directory
    local kinds names listed bad
    kinds=$(timeout 300 tar -tvzf "$1/$ARCHIVE" 2>/dev/null) || { echo "$ARCHIVE holds no tar archive"; return; }
    names=$(timeout 300 tar -tzf "$1/$ARCHIVE" 2>/dev/null | sort)
    listed=$(cut -c67- "$1/SHA256SUMS" | grep '^lib/' | sort) || true
    bad=$(uniq -d <<<"$names" | head -n 1)
    [[ -z $bad ]] || { echo "$bad is twice in $ARCHIVE"; return; }
    bad=$(comm -13 <(echo "$listed") <(echo "$names") | head -n 1)
    [[ -z $bad ]] || { echo "$bad in $ARCHIVE is not listed in SHA256SUMS"; return; }
    bad=$(comm -23 <(echo "$listed") <(echo "$names") | head -n 1)
    [[ -z $bad ]] || { echo "$bad is missing from $ARCHIVE"; return; }
    bad=$(grep -vm 1 '^-' <<<"$kinds") || true
    [[ -z $bad ]] || echo "$ARCHIVE has a member that is not a plain file: $bad"
}

version_of() { # directory -> the kit's version in a bundle that was verified
    if [[ -e $1/$ARCHIVE ]]; then
        tar -xzOf "$1/$ARCHIVE" lib/hyperpod_kit/version.py
    else
        cat "$1/lib/hyperpod_kit/version.py"
    fi | sed -n 's/^RELEASE = "\(.*\)"$/\1/p'
}

# A `job run` of a build before 0.1.0 that is at work calls its ranks' wrapper by `current` only as long as that one's
# file and its own are the same (an inode, not bytes), and by its own bundle otherwise, which other nodes need not have.
# So all bundles on a node share this one file, as long as its text does not change.
DOOR=lib/hyperpod_kit/job/__main__.py
share_door() {
    local other link=$HOME_DIR/door.partial
    for other in "$HOME_DIR"/*/"$DOOR"; do
        [[ ! -L ${other%"/$DOOR"} && ! $other -ef $TARGET/$DOOR ]] || continue
        cmp -s "$other" "$TARGET/$DOOR" || continue
        # Renamed over the other one: a rank may be starting from it just now.
        if ! { ln -f "$TARGET/$DOOR" "$link" && mv -fT "$link" "$other"; }; then rm -f "$link"; fi
    done
}

STEP=verify-bundle
problem=$(verify "$BUNDLE")
[[ -z $problem ]] || fail 1 "$BUNDLE: $problem" "hyperpod-kit upload"
ID=$(sha256sum "$BUNDLE/SHA256SUMS" | cut -c1-16)
# bundle.json cannot be in SHA256SUMS, which its id is made from: it is compared with what it must say.
VERSION=$(version_of "$BUNDLE")
if ! printf '{\n  "format": "hpk-bundle/2",\n  "kit_version": "%s",\n  "bundle_id": "%s"\n}\n' "$VERSION" "$ID" |
    cmp -s - "$BUNDLE/bundle.json"; then
    fail 1 "$BUNDLE: bundle.json is missing or does not carry the id $ID of SHA256SUMS" "hyperpod-kit upload"
fi
# The prefix that HyperPod downloaded is named by its contents: another, even a whole, bundle in it is a mixture.
if [[ ${BUNDLE##*/} =~ ^[0-9a-f]{16}$ && ${BUNDLE##*/} != "$ID" ]]; then
    fail 1 "$BUNDLE: the files are those of bundle $ID" "hyperpod-kit upload, and create the node from its prefix"
fi
report ok

STEP=install-bundle
TARGET=$HOME_DIR/$ID
mkdir -p "$HOME_DIR"
# The program inherits the descriptor, and with it the lock, in case this shell is killed.
exec 9>"$HOME_DIR/.lock"
flock -w "$LOCK_SECONDS" 9 || fail 1 "another run of this script has been at work for $LOCK_SECONDS s" "tail $LOG"
# Halves of bundles that were being installed when the script was killed.
find "$HOME_DIR" -mindepth 1 -maxdepth 1 -name '*.partial' -exec rm -rf {} +
if [[ $BUNDLE != "$TARGET" && ( ! -d $TARGET || -n $(verify "$TARGET") ) ]]; then
    mkdir "$TARGET.partial"
    cp -R "$BUNDLE/." "$TARGET.partial/"
    if [[ -e $TARGET.partial/$ARCHIVE ]]; then
        tar -xzf "$TARGET.partial/$ARCHIVE" -C "$TARGET.partial" --no-same-owner --no-same-permissions --touch
        rm "$TARGET.partial/$ARCHIVE"
    fi
    # S3 keeps no mode bits.
    find "$TARGET.partial" -type d -exec chmod 0755 {} +
    find "$TARGET.partial" -type f -exec chmod 0644 {} +
    find "$TARGET.partial" -type f \( -name '*.sh' -o -path '*/bin/*' \) -exec chmod 0755 {} +
    # The copy is what runs from now on.
    problem=$(verify "$TARGET.partial")
    [[ -z $problem ]] || fail 1 "$TARGET.partial: $problem" "df $HOME_DIR, then run this script again"
    # Programs may run from a damaged copy, and import from it: it stays until the whole one can take its place.
    [[ ! -d $TARGET ]] || mv -T "$TARGET" "$TARGET.damaged.partial"
    mv -T "$TARGET.partial" "$TARGET"
    rm -rf "$TARGET.damaged.partial"
    changed=changed
fi
share_door
if [[ $(readlink "$HOME_DIR/current" 2>/dev/null) != "$ID" ]]; then
    # rename(2) replaces the link in one step: there is always a `current`.
    ln -sfn "$ID" "$HOME_DIR/current.new"
    mv -T "$HOME_DIR/current.new" "$HOME_DIR/current"
    changed=changed
fi
if [[ $(readlink "$ROOT/usr/local/bin/hyperpod-kit" 2>/dev/null) != /opt/hyperpod-kit/current/bin/hyperpod-kit ]]; then
    mkdir -p "$ROOT/usr/local/bin"
    ln -sfn /opt/hyperpod-kit/current/bin/hyperpod-kit "$ROOT/usr/local/bin/hyperpod-kit"
    changed=changed
fi
report "${changed:-ok}"

STEP=apply
/usr/bin/python3 -I -S -c 'import sys; sys.exit(sys.version_info < (3, 8))' ||
    fail 1 "/usr/bin/python3 is $(/usr/bin/python3 -V 2>&1): expected Python 3.8 or later" "use a newer HyperPod AMI"
export SAGEMAKER_RESOURCE_CONFIG_PATH=${SAGEMAKER_RESOURCE_CONFIG_PATH:-$ROOT/opt/ml/config/resource_config.json}
# The program writes its own lines into the log; what it says on standard error (a crash) must get there too.
exec 4> >(tee -a "$LOG" >&3)
errors=$!
code=0
timeout -k 10 "$TOTAL_SECONDS" /usr/bin/python3 -I -S "$HOME_DIR/current/lib" node apply --mode "$MODE" 2>&4 || code=$?
exec 4>&-
wait "$errors" || true
((code == 0)) || fail "$code" "node apply --mode $MODE exited $code" "read the failed steps above"
report ok
