"""The control page: numbers that processes share, declared once, and who writes and reads them."""
