"""A thousand machines for a day, simulated."""
