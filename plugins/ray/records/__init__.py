"""What the parts of a cluster know of each other: names, settings, loads, the directory."""
