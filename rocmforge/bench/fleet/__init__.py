"""The suite over a fleet: commits × kinds of machine on an engine, gathered into one tree."""
