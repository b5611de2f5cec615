"""Reports for a terminal: tables, summaries, screens, sentences."""
