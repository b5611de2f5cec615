"""JSON documents (docs/formats)."""
