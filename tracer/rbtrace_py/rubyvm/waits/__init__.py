"""What threads and fibers wait for, from the VM's frames, locks, and queues."""
