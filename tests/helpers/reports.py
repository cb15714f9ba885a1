"""A run directory whose logs have everything that a report shows."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from fidec.store.rundir import RunDirectory
from fidec.train.config import RunConfig
from fidec.train.protocol import resolve_options
from fidec.train.resolve import resolve

HOSTILE = "<img src=x onerror=alert(1)>\"'&</script><script>alert(2)</script>"
STEPS = 20_000


def write_rich_run(path: Path, seed: int = 0, text: str = "door", **changes: Any) -> Path:
    """A finished FiDec run that was evaluated, audited and compared with its base policy. `text` is everywhere."""
    options = resolve_options("fidec", "nats", None, hidden=(8, 8))
    config = RunConfig(env=f"my_package:{text}", data=f"npz:{text}.npz", preset="nats", seed=seed, options=options)
    config = dataclasses.replace(resolve(dataclasses.replace(config, steps=STEPS)), **changes)
    steps = range(1_000, STEPS + 1, 1_000)
    train = [
        {
            "step": step,
            "training/penalty": 0.2 + 0.1 * math.cos(step),
            "training/multiplier": 1.0 + step / STEPS,
            "training/q_data": -10.0 + step / 1e4,
            "training/q_policy": -9.9 + step / 1e4,
            "training/critic_loss": 1.0 + 0.1 * math.sin(step),
            f"training/{text}_loss": 0.5,
        }
        for step in steps
    ]
    summary = {"n": 50, "n_failed": 0, "success": 0.5, "success_low": 0.4, "success_high": 0.6}
    summary |= {"return": -10.0, "return_low": -12.0, "return_high": -8.0, "score": 50.0}
    named = {f"evaluation/{name}": value for name, value in summary.items()}
    gain = {"of": "success", "mean": 0.3, "low": 0.1, "high": 0.5, "n": 50}
    episode = {"lane": 0, "return": -10.0, "length": 7, "detail": None}
    episodes = [
        {
            "step": step,
            "episode": i,
            "seed": 100 - i,
            "status": "ok" if i else text,
            "success": float(i % 2),
            **episode,
        }
        for step in (10_000, 20_000)
        for i in range(10)
    ]
    facts = {"name": text, "source": f"npz:{text}.npz", "transitions": 1_000, "sha256": "ab" * 32, "findings": [text]}
    machine = {"python": "3.11", "packages": {"jax": "0.10"}, "platform": text, "cpus": 2, "devices": ["cpu"]}
    logs = {
        "train": train,
        "eval": [{"step": 10_000, **named}, {"step": 20_000, **named}],
        "episodes": episodes,
        "time": [
            {"step": 0, "time/compile": 5.0},
            {"step": 20_000, "time/steps_per_second": 100.0},
            {"step": 20_000, "time/evaluation": 30.0},
        ],
    }
    with RunDirectory.create(path) as run:
        run.write_config(config.to_json())
        run.write_environment({**machine, "dataset": facts})
        for name, rows in logs.items():
            (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        run.write_status("done", STEPS)
    found = {
        "comparison.json": {"environment": text, "step": STEPS, "base": summary, "refined": summary, "gain": gain},
        "audit/audit.json": {"step": STEPS, "sentences": [text], "kl": {"mean": 0.2, "low": 0.1, "high": 0.3}},
    }
    (path / "audit").mkdir()
    for name, value in found.items():
        (path / name).write_text(json.dumps(value))
    return path


def change_log(run: Path, name: str, change: Any) -> None:
    """Rewrite the rows of a log."""
    path = run / f"{name}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in change(rows)))
