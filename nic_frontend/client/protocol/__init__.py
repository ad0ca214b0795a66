"""A client's side of a session, in C or in Python, and the connection under it."""
