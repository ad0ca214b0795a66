"""What ``soak.py`` does to a server: models, callers, faults, and how memory is judged."""
