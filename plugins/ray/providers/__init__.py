"""Where machines come from: what is asked of a cloud, and the clouds that are known."""
