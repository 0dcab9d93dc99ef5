"""A Ray cluster of two nodes on this machine: ``python -m tests.support.ray_cluster``.

It prints its address, and then follows lines on stdin: ``remove`` loses the second node, ``add`` adds another one. Each
is answered with ``done``. It ends with its stdin.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        print("the cluster is at", cluster.address, flush=True)
        for line in sys.stdin:
            if line.strip() == "remove":
                cluster.remove_node(node, allow_graceful=False)
            else:
                node = cluster.add_node(num_cpus=1)
            print("done", line, end="", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
