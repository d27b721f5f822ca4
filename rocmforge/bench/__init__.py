"""The gate behind `rocmforge bench`: asv's results, baselines, verdicts, reports, pages."""
