"""For `gt.run`: the device ``cuda``, and what `torch.cuda` answers. It may import everything of the device."""
