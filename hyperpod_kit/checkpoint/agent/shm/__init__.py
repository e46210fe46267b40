"""What lies in a node's shared memory: slots, their control pages, locks and notes. Begin with `shm_slots`."""
