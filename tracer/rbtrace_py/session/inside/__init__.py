"""The agent inside a process: put there, taken out, and what it runs and reports."""
