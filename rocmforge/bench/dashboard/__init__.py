"""Pages of all results: asv's own, made to work offline, behind a summary. Measures nothing."""
