"""A process that makes episodes: `python -m fidec.make.worker`, started by `fidec.make.pool`.

It reads one JSON line (recipe, seed, directory, expert), then one line `[split, index]` per episode, and answers
each with one JSON line. It ends as soon as its input closes, so it never outlives its parent process.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, Any

from fidec.errors import FidecError
from fidec.make.expert.policy import Policy
from fidec.make.expert.store import load_expert
from fidec.make.recipes import Recipe
from fidec.make.shards import shard_path, write_arrays


def open_world(recipe: Recipe, policy: Policy | None = None) -> Any:
    """The environment and oracles of a recipe, with a method `episode(seed, split, index)`; ants need a policy."""
    if recipe.kind == "play":
        from fidec.make.play import PlayWorld

        return PlayWorld(recipe)
    if recipe.kind == "visual-play":
        from fidec.make.visual import VisualPlayWorld

        return VisualPlayWorld(recipe)
    from fidec.make.navigate import NavigateWorld

    return NavigateWorld(recipe, policy)


def _read_jobs(stdin: IO[str], jobs: queue.SimpleQueue[Any]) -> None:
    for line in stdin:
        jobs.put(json.loads(line))
    os._exit(0)  # the parent has ended: stop in the middle of an episode, of which nothing was written


def main() -> None:
    # Answers go to a private copy of stdout, so that nothing that a library prints can get among them.
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
        expert = setup["expert"]  # with the hash that the parent saw
        policy = load_expert(Path(expert["directory"]), sha256=expert["sha256"]).policy if expert else None
        world = open_world(recipe, policy)
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
