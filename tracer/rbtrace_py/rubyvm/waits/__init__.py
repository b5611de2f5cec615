"""What threads and fibers wait for, as the VM has it: by frames, locks and queues."""
