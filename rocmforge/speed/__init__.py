"""How fast an engine is: its prompts and decode steps timed, and the least that they could take."""
