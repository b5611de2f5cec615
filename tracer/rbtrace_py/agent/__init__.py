"""Source: our hand inside a Ruby process, and how it is put there."""
