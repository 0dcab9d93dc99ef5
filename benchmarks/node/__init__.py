"""What one node can do, without a model: products, memory, the way to the host, and all of it for a minute."""
