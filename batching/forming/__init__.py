"""When a batch leaves, and how large it is: pure rules. The jar and the data path in C hold
copies."""
