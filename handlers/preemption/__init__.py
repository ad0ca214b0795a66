"""How a best-effort worker gives way, in the middle of a pass."""
