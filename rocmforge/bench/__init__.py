"""asv results, baselines and regressions: the code behind tools/. Knows nothing of the engine."""
