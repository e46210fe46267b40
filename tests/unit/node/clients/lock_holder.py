"""Holds one of dpkg's or apt's locks, as another installation would: `lock_holder.py FILE SECONDS`."""

import fcntl
import sys
import time

with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
