"""Compare two methods on the same data, in the same episodes, over several seeds.

The environment and the data are those of own_environment.py. For many tasks and methods `fidec suite` does the same
in parallel, resumes after an interruption and prints a table with intervals.
"""

from __future__ import annotations

import fidec
from own_environment import Reach, record

METHODS = {
    "bc": {"hidden": (32, 32)},
    "fidec": {"hidden": (32, 32), "flow_steps": 4, "discount": 0.9},
}
SEEDS = (0, 1)


def main() -> None:
    dataset = record()
    for method, options in METHODS.items():
        successes = []
        for seed in SEEDS:
            out = f"compare-runs/{method}-{seed}"
            result = fidec.fit(
                dataset, out, algo=method, seed=seed, steps=500, batch_size=64, options=options, overwrite=True
            )
            # `seed` is that of the episodes. It is the same for both methods, so their starts are the same.
            found = fidec.evaluate(result.directory, env=Reach, episodes=10, envs=1, seed=0)
            scores = found["policy" if method == "bc" else "refined"]  # bc refines no base policy
            interval = f"[{scores['success_low']:.2f}, {scores['success_high']:.2f}]"
            print(f"{method:<6} seed {seed}  success {scores['success']:.2f} {interval}")
            successes.append(scores["success"])
        print(f"{method:<6} mean    success {sum(successes) / len(successes):.2f}")


if __name__ == "__main__":
    main()
