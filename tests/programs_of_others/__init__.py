"""Other people's programs, run with torch and with GT: with the same data, weights and random numbers, the same losses.

`table.py` has one entry per program. `compare.py` runs a program in both worlds, `worlds.py` is what runs in each
process. Nothing of the programs is in this repository: they come from installed packages and from checkouts of public
repositories in a folder one names. The command, which also prints the table of docs/programs.md:

    python -m tests.programs_of_others --programs DIR
"""
