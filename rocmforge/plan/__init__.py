"""Plans: a forward pass as records of ops, what fuses, where tensors lie, and running it."""
