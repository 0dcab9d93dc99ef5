"""Communication, training, memory and scaling of one or more machines, by PyTorch and torchrun. No use of GT."""
