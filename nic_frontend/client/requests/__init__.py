"""Requests of a client, whatever carries them: arrays, errors, and whom to ask."""
