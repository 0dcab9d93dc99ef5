"""The encoder-decoder Transformer benchmark: how fast this machine trains it, with torch or GT.

benchmark        the command: one run, one result file
launch           as many processes as there are GPUs
options          flags, defaults, checks
model            the model on torch and on GT, its parameters and FLOPs by formula
dataset          shards on disk: written atomically, checked on reuse
pagecache        whether a read came from the disk or from memory
loader           the batches of a rank
engines          the model under ddp and fsdp; engine_gt the same on GT
fitting          the batch size that fills a given share of memory
measuring        epochs, timed
compare_results  the command that compares result files; comparing and exporting are its parts
"""
