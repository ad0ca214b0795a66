"""Memory that is left."""
