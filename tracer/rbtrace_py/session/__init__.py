"""One small class a question; what the library offers to programs."""
