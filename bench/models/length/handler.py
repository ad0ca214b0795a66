"""Bytes in, their number out: what a server does with a large body."""


class LengthHandler:
    """Looks at nothing."""

    def initialize(self, context):
        """Nothing to load."""

    def handle(self, data, context):
        """Return one number per request."""
        return [[len(row.get("body") or row.get("data"))] for row in data]
