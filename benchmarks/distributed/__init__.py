"""Communication, training, memory and scaling of a machine or several, by PyTorch and torchrun."""
