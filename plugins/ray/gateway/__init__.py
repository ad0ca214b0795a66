"""A gateway: where requests come in, and from where they are forwarded to machines."""
