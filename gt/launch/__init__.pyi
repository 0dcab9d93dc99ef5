from gt.launch.clusters import ray as ray
from gt.launch.clusters import slurm as slurm
from gt.launch.clusters import slurm_workers as slurm_workers

__all__ = ["ray", "slurm", "slurm_workers"]
