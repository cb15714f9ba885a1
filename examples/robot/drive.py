"""Drive the pick robot with the actions of a policy server, and say how it goes.

    fidec serve pick-run &
    python drive.py --url http://127.0.0.1:8000 --episodes 5

It needs neither fidec nor JAX: an observation goes out as JSON, actions come back. The server's metadata says how
many actions of a chunk are played before the next request.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from typing import Any

import gymnasium
import numpy as np
import pick  # noqa: F401 - registers Pick-v0


def ask(url: str, message: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if message is None else json.dumps(message).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as answer:
        return json.load(answer)


def drive(url: str, episodes: int, seed: int = 1000) -> float:
    """The share of episodes in which the cube is lifted."""
    env, replan = gymnasium.make("Pick-v0"), ask(f"{url}/metadata")["actions"]["replan"]
    successes = 0
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed + episode)
        ended, plan, first = False, [], True
        while not ended:
            if not plan:
                parts = {name: np.asarray(value).tolist() for name, value in observation.items()}
                answer = ask(f"{url}/act", {"observation": parts, "client": "drive", "reset": first})
                plan, first = answer["actions"][:replan], False
            observation, _, terminated, truncated, _ = env.step(np.asarray(plan.pop(0), np.float32))
            ended = terminated or truncated
        successes += terminated
        print(f"episode {episode}: {'lifted' if terminated else 'not lifted'}")
    env.close()
    return successes / episodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--episodes", type=int, default=5)
    arguments = parser.parse_args()
    print(f"success {drive(arguments.url, arguments.episodes):.2f}")


if __name__ == "__main__":
    main()
