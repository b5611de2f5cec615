"""Waits of threads and fibers, from the VM's frames, locks, and queues."""
