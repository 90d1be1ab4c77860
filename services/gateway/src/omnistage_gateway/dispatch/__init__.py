"""From a checked request to its events: who lives, who waits, and the way through the pipeline."""
