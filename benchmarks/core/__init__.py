"""What every suite shares: timing, the record of a run, its verdict, tables and plots. Imports torch, not gt.

formulas     bandwidths, fits, efficiencies, prices: pure arithmetic
peaks        dense peaks of known devices, with their sources; MFU
timing       samples of a repeated action, and their summary
environment  the machine and software of a run
ranks        the processes of a run, and how they end together
sampler      NVML in its own process
results      one file per run, valid JSON at every moment
verdict      whether the figures are valid, and why not
tables, plots, progress
"""
