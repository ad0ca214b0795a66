"""Models of other backends of Triton: what can be done for them without moving them."""
