#!/bin/bash
# The entry script of one node of test_creation_sweep.py: the real creation, killed with SIGKILL, script and program,
# right after the program's line number KILL_AFTER in the log (before its next step), and then run again to its end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
python=$(readlink -f /usr/bin/python3)

mv /usr/bin/python3 /usr/bin/python3.theirs
cat >/usr/bin/python3 <<EOF
#!/bin/bash
case " \$* " in *" node apply "*) shift 2; exec $python -I -S $here/killer.py $KILL_AFTER "\$@" ;; esac
exec $python "\$@"
EOF
chmod 0755 /usr/bin/python3
code=0
HPK_MODE=on_init_complete /bin/bash "$here/bundle/on_create.sh" || code=$?
mv -f /usr/bin/python3.theirs /usr/bin/python3
echo "$code" >/root/first-run
HPK_MODE=on_init_complete /bin/bash "$here/bundle/on_create.sh" | tee /root/second-run
