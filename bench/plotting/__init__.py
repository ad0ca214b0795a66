"""Pictures of committed results: ``bench/plots.py``."""
