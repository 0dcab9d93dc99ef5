"""A program in a Slurm job, on all workers of the job: ``sbatch examples/slurm.sbatch``"""

from __future__ import annotations

import gt


def main() -> None:
    gt.launch.slurm_workers()
    gt.auto_shard()
    x = gt.randn(1024, 64)
    target = x @ gt.randn(64, 1)
    model = gt.nn.Linear(64, 1)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(50):
        loss = gt.nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{len(gt.workers())} workers, x is {x.layout}, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
