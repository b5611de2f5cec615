"""Reports that are read in a terminal: tables, summaries, screens, sentences."""
