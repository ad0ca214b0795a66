"""Commands that look at servers and machines: status, explain, trace, doctor."""
