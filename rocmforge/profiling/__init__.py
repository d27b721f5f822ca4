"""What a measurement is held against: the environment of its run, and the most a device can do."""
