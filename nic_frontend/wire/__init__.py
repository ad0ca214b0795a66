"""What is on the wire: headers, hellos, segments, and what protects them."""
