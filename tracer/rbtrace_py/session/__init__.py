"""Sessions: one class per query. The library offers them to programs."""
