"""Hot paths on a worker: how a repeated section of a fragment climbs the levels interpreted, graph, compiled.

A `LevelSwitch` counts the runs of each section and records which numbers and inputs change. A section that has run
often is translated into a `Program`, one function of its inputs and of the numbers that change. On a GPU the program is
captured as a CUDA graph, which is quick to make. Meanwhile a background thread compiles the program with inductor; the
result must give the values of the interpreter in a trial run, and then replaces the graph (on a GPU it is captured as a
graph as well). Before each run a `Guard` checks what the faster level assumes: layout of the inputs, constant numbers,
no other references to memory that is written. If an assumption does not hold, the section is interpreted in this run,
and after a few such runs its program is built again without the assumption.

The package may import torch, `gt.ops`, `gt.say` and the worker's engines; `levels` and `section` import no torch.
"""
