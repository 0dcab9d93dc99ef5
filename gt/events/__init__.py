"""The event stream: what the dispatcher and the workers of a running system do, for programs that show it.

    with Viewer(find_server()) as viewer:          # viewer.py: connect, listen, read
        table = EventTable()                       # table.py: all that arrived, on the server's clock
        for batch in viewer.batches(seconds=10):
            table.add(batch)
    for event in table.events(): ...               # Event: worker, client, name, times, source line

Workers record only while somebody listens. `breakdown.py` says where the time went, `log.py` and `perfetto.py` write
files, `trace_file.py` reads them, `lanes.py` arranges them as a picture, `kernels.py` reads traces of kernels. This
folder imports `gt.wire`, `gt.launch` and what is below, and numpy; it knows no role.
"""

from __future__ import annotations
