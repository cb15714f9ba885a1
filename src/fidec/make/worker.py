"""A process that makes episodes: `python -m fidec.make.worker`, started by `fidec.make.pool`.

It reads one JSON line (recipe, seed, directory, experts), then one line `[split, index]` per episode, and answers
each with one JSON line. It ends as soon as its input closes, so it never outlives the process that asked.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from fidec.errors import FidecError
from fidec.make.recipes import Recipe
from fidec.make.shards import shard_path, write_arrays


def open_world(recipe: Recipe, policies: Mapping[str, Any] | None = None) -> Any:
    """The environment and oracles of a recipe, with an `episode(seed, split, index)` method.

    `policies` are those of the recipe's experts, by name.
    """
    if recipe.kind == "play":
        from fidec.make.play import PlayWorld

        return PlayWorld(recipe)
    if recipe.kind == "visual-play":
        from fidec.make.visual import VisualPlayWorld

        return VisualPlayWorld(recipe)
    if recipe.kind == "soccer":
        from fidec.make.soccer import SoccerWorld

        return SoccerWorld(recipe, policies or {})
    from fidec.make.navigate import NavigateWorld

    return NavigateWorld(recipe, policies)


def _load_policies(experts: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The experts that the asking process saw, and no others."""
    from fidec.make.expert.store import load_expert

    return {
        name: load_expert(Path(where["directory"]), name, sha256=where["sha256"]).policy
        for name, where in experts.items()
    }


def _read_jobs(stdin: IO[str], jobs: queue.SimpleQueue[Any]) -> None:
    for line in stdin:
        jobs.put(json.loads(line))
    os._exit(0)  # The parent is done or dead: stop in the middle of an episode, which leaves nothing behind.


def main() -> None:
    # Answers go to a private copy of stdout: whatever a library prints must not end up among them.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**content: Any) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    setup = json.loads(sys.stdin.readline())
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(sys.stdin, jobs), daemon=True).start()
    try:
        recipe, directory = Recipe(**setup["recipe"]), Path(setup["directory"])
        world = open_world(recipe, _load_policies(setup["experts"]))
        while True:
            split, index = jobs.get()
            arrays = world.episode(setup["seed"], split, index)
            write_arrays(shard_path(directory, split, index), arrays)
            answer(split=split, index=index)
    except FidecError as error:
        answer(error=str(error))
    except Exception as error:
        traceback.print_exc()
        answer(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
