"""What a batch is and when it leaves: the shared bytes and the pure rules."""
