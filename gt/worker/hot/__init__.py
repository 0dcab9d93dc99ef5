"""Hot paths on a worker: how a repeated section of a fragment climbs the levels interpreted, graph, compiled.

A `LevelSwitch` counts the runs of each section and records which numbers and inputs change. A section that has run
often is translated into a `Program`, one function of its inputs and of the numbers that change. On a GPU the program is
captured as a CUDA graph, which takes little time. A background thread compiles the program with inductor. In a trial
run the compiled code must give the values of the interpreter, unless the same code has done so in an earlier process
(`Verdicts`). Then it replaces the graph (on a GPU it is captured as a graph as well). A graph is captured once the
graphs of other sections stay as they are (`Settling`), so that it reads their results in place.

Before each run the faster level checks what it assumes: the strides of the inputs and which of them share memory
(`Guard`), the numbers that did not change (`ConstantNumbers`), and that nothing else uses an input that a result
overwrites (`donation`). If an assumption does not hold, the section is interpreted in this run. A changed number drops
the faster level at once, a changed layout after a few runs; later it is built again from what was observed.

The package may import torch, `gt.ops`, `gt.say` and the worker's engines; `levels` and `section` import no torch.
"""
