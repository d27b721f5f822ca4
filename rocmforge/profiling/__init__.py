"""What a measurement can be held against: its conditions, and what the device can do at best."""
