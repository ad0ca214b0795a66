"""Many machines: which one a request goes to, how many there are, and how they are got."""
