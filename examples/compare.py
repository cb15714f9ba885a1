"""Compare two methods on the same data, in the same episodes, over several seeds.

The environment and the data are those of own_environment.py. `fidec sweep` does the same in parallel for data and
environments that it can load by their names, and `fidec suite` for many tasks.
"""

from __future__ import annotations

from typing import Any

import fidec
from own_environment import Reach, record

METHODS = {
    "bc": {"hidden": (32, 32)},
    "fidec": {"hidden": (32, 32), "flow_steps": 4, "discount": 0.9},
}
SETTINGS: dict[str, Any] = {"steps": 500, "batch_size": 64, "eval_interval": 500, "eval_episodes": 10, "eval_envs": 1}


def main() -> None:
    dataset = record()
    for method, options in METHODS.items():
        for seed in (0, 1):
            out = f"compare-runs/{method}-{seed}"
            fidec.fit(dataset, out, algo=method, seed=seed, env=Reach, options=options, overwrite=True, **SETTINGS)
    # Runs with the same seed are evaluated on the same episodes, so their differences are paired.
    for entry in fidec.compare(["compare-runs"], baseline="bc").comparisons[0].entries:
        low, high = entry.interval
        print(f"{entry.name:<6} success {entry.mean:.0f} % [{low:.0f}, {high:.0f}] in {len(entry.runs)} runs")
        if entry.against is not None:
            print(f"{entry.against.mean:+.0f} against bc [{entry.against.low:+.0f}, {entry.against.high:+.0f}]")


if __name__ == "__main__":
    main()
