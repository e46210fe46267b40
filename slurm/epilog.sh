#!/bin/bash
# slurm.conf: Epilog=   root, on every node of an allocation after its last step.
# Hands what dead trainers left in shared memory over to a unit that brings it to storage, however long that takes, and
# waits until storage says that it is coming: Slurm starts the job's next run after this. Always exits 0: a checkpoint
# that cannot be saved is no reason to drain a node.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
program=/opt/hyperpod-kit/current/bin/hyperpod-kit
log=/run/hyperpod-kit/epilog-${SLURM_JOB_ID:-0}.log

[ -n "$SLURM_JOB_ID" ] && [ -n "$SLURM_JOB_UID" ] || exit 0
mkdir -p /run/hyperpod-kit
(umask 077 && : >"$log") # paths of the user's runs are in it
# Each component of a heterogeneous job has a number of its own, its ranks have their leader's.
ended=${SLURM_HET_JOB_ID:-$SLURM_JOB_ID}.${SLURM_RESTART_COUNT:-0}.$SLURM_JOB_UID${SLURM_JOB_GID:+.$SLURM_JOB_GID}
timeout -k 5 50 "$program" checkpoint flush --hand-over "$ended" \
    </dev/null >>"$log" 2>&1 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-
code=$?
# What was saved, and the last words of agents that died, outlive the file in the journal: each line with its job, since
# a name in it is the user's choice.
[ ! -s "$log" ] || tail -c 65536 "$log" | LC_ALL=C tr '\000-\011\013-\037\177' ' ' | sed "s/^/job $SLURM_JOB_ID: /" |
    logger -t hyperpod-kit >/dev/null 2>&1
if [ "$code" -eq 0 ]; then
    rm -f "$log"
else
    logger -t hyperpod-kit "epilog of job $SLURM_JOB_ID: flush exited $code, see $log" </dev/null >/dev/null 2>&1
fi
rm -f "/run/hyperpod-kit/gate-$SLURM_JOB_ID.log"
exit 0
