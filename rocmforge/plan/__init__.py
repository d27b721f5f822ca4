"""The neutral layer: a forward pass as op records, fusion rules, the arena, devices' protocols."""
