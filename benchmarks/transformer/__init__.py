"""The encoder-decoder Transformer benchmark: how fast this machine trains it.

benchmark        the command: one run, one result file
launch           as many processes as there are GPUs
options          flags, defaults, what is refused
model            the model on torch and on GT, its parameters and FLOPs counted by formula
dataset          shards on disk: written atomically, checked on reuse
pagecache        what a read came from: the disk or memory
loader           batches of a rank, and how long the loop waited for them
engines          ddp and fsdp: one training step; engine_gt the same on GT
fitting          the batch size that fills the memory wanted
measuring        epochs, timed
compare_results  the command that sets result files side by side; comparing and exporting are its parts
"""
