"""Ruby stacks: read once, sampled, from core files and from recordings."""
