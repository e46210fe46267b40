#!/bin/bash
# slurm.conf: TaskProlog=   the job's user, before every task and before the batch script. Standard output is a
# protocol (`export NAME=value`, `unset NAME`, `print text`), a non-zero exit cancels the task.
# For scripts that call bare srun: all ranks get one answer. `hyperpod-kit job run` has decided already when
# HPK_ATTEMPT is set, and the batch script (no SLURM_STEP_ID) decides nothing.
[ "${HPK_AUTO_RESUME:-${SLURM_SPANK_HPK_AUTO_RESUME:-0}}" != 0 ] || exit 0
[ -n "$SLURM_STEP_ID" ] && [ -z "$HPK_ATTEMPT" ] && [ -n "$HPK_CHECKPOINT_ROOT" ] || exit 0

program=/opt/hyperpod-kit/current/bin/hyperpod-kit
# A file, not a pipe: a reader that hangs on a broken mount must not keep the task waiting beyond the deadline.
answer=$(mktemp /tmp/hpk-task-prolog.XXXXXX) || exit 0
timeout -k 2 45 "$program" job task-prolog </dev/null >"$answer" 2>/dev/null
code=$?
cat "$answer"
rm -f "$answer"
# 86: something was committed and nothing of it can be trusted. Never start from scratch; all else stays open.
[ "$code" -ne 86 ] || exit 1
exit 0
