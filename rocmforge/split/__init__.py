"""A model whose layers lie on several devices: its stages run one after another."""
