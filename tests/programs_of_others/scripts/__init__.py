"""Scripts in torch, each of which trains a small model of an installed package on made-up data."""
