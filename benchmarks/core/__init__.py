"""What every suite shares: timing, the record of a run, its verdict, tables and plots. Imports torch, not gt.

formulas     bandwidths, fits, efficiencies, prices: pure arithmetic
peaks        dense peaks of known devices, with their sources; MFU; achievable: the peak that a GPU measures itself
timing       samples of a repeated action, and their summary
environment  the machine and software of a run
ranks        the processes of a run, and how they end together
sampler      NVML in its own process; health: whether the hardware is in order; processor: the load of others
trainer      one training step on torch; parallel: under DDP or FSDP; loader: its batches, made ahead
sides        two sides of a step in turns: exposed communication, and twice the batch
gauge        the memory of a process; batch_fit: the largest batch that fits
outliers     which rank, link or node is slower than its peers
results      one file per run, valid JSON at every moment
verdict      whether the figures are valid, and why not
audit        whether they follow from the raw samples; derived: what follows, a row for each kind of part
rows         one row of a result table, with its goal
tables, plots, progress
"""
