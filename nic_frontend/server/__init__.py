"""The front end: sessions, functions and workers around the data path."""
