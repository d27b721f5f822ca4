"""The subcommands of `rocmforge bench`, a module each: `add_arguments(parser)`, `run(args)`."""
