"""A model on several devices: stages one after another, or a part of each matrix on each."""
