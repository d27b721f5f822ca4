"""Models: configuration, weights, forward pass, and synthetic files of any shape."""
