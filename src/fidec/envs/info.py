"""What is known of a task before its environment is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TaskInfo:
    """One environment with one task in it, and one kind of data."""

    id: str  # cube-single-play-singletask-task2-v0, door-human-v1, minari:D4RL/door/human-v2
    family: str  # cube-single, door, AdroitHandDoor-v1 (the environment that a Minari data set declares)
    data: str  # play, human; empty where there is only one kind
    task: int  # 2; 0 where the family has a single task
    is_default: bool  # whether cube-single-play-singletask-v0 means this task
    horizon: int  # steps until an episode is cut off
    visual: bool  # 64 x 64 pixels instead of the state
    suite: Literal["ogbench", "d4rl", "minari"] = "ogbench"
    note: str = ""  # what a reader of its scores has to know

    @property
    def env_id(self) -> str:
        """The id in gymnasium's registry, which does not mention the data; D4RL's are not registered there."""
        return f"{self.family}-singletask-task{self.task}-v0" if self.suite == "ogbench" else self.family

    @property
    def dataset(self) -> str:
        """The data file; all tasks of an OGBench family share one."""
        if self.suite == "ogbench":
            return f"{self.family}-{self.data}-v0"
        return self.id.removeprefix("minari:")
