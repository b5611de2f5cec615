"""JSON documents (docs/formats.md)."""
