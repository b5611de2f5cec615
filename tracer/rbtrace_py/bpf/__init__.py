"""Programs for the kernel: their source, loading, attaching."""
