"""Ops that cannot be cut across workers: their operands are gathered first."""

from __future__ import annotations

#: op: why
GATHERED = {
    "block": "it is what cutting does",
    "term": "it is what cutting does",
    "placed": "it goes where its signal says",
    "adafactor_step": "a step goes by the mean of a whole parameter's squares",
    "upload": "its bytes are one message; the dispatcher cuts what it sends",
    "save_file": "one worker writes one file",
    "load_file": "one worker reads one file",
    "nonzero": "where a result stands depends on all that are before it",
    "masked_scatter": "which element goes where depends on all of the mask before it",
    "masked_scatter_backward": "as masked_scatter",
    "median": "the middle of parts is not the middle",
    "nanmedian": "the middle of parts is not the middle",
    "unique_ranks": "a rank is among all rows",
    "histc": "with equal bounds they are those of all elements",
}
