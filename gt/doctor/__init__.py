"""``gt doctor``: what this machine has, what is wrong with it, and what to do about it.

`machine` collects facts and judges nothing; `findings` judges the facts and asks the machine nothing; `trials` starts
small local systems and measures them. Programs that may crash or hang run in processes of their own.
"""
