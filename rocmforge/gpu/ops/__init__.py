"""One module an op: the constants of its kernel, and the launches that compute it."""
