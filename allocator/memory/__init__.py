"""Memory: what the host has left, and a device's as a cache of models."""
