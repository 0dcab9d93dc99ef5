"""What every suite shares: time, the record of a run, its verdict, tables and plots.

formulas     bandwidths, fits, efficiencies, prices: pure arithmetic
peaks        dense peaks of known devices, with their sources; MFU
timing       samples of a repeated act, and their summary
environment  what a run ran on
ranks        the processes of a run, and how they end together
sampler      NVML in a process of its own
results      one file a run, valid at every moment
verdict      whether the figures may be believed, and why not
tables, plots, progress
"""
