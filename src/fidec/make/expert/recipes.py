"""Which experts can be trained, in which of OGBench's environments, and for how long.

The tasks and rewards are those of OGBench's own experts, and so are the step counts of antball and humanoid. The
learner is fidec's SAC, whose critic has layer normalisation and whose temperature starts small; the ant's also sees
its direction as the x axis (`features.turned`), takes smaller batches and fewer updates a step. So these experts are
made in OGBench's way, but they are not OGBench's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fidec.errors import ConfigError


@dataclass(frozen=True)
class ExpertRecipe:
    """How one expert is trained. `steps` counts environment steps."""

    name: str
    env_id: str
    steps: int
    features: Literal["turned", "plain"]  # what the networks see of OGBench's observation (see `features`)
    steps_per_update: int
    batch: int = 128
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    aggregate: Literal["min", "mean"] = "min"
    temperature: float = 0.01  # the first one
    episode_steps: int = 1000
    end_is_terminal: bool = False  # no value is bootstrapped at the end of an episode's time
    random_steps: int = 5000  # steps of uniform actions before the first update
    environments: int = 8
    block: int = 8  # steps in every environment between two rounds of updates
    capacity: int = 1_000_000  # transitions that the replay buffer keeps
    takes_days: bool = False  # too long to start without being asked to

    @property
    def block_steps(self) -> int:
        return self.environments * self.block

    @property
    def block_updates(self) -> int:
        return self.block_steps // self.steps_per_update


EXPERTS: dict[str, ExpertRecipe] = {
    recipe.name: recipe
    for recipe in (
        # OGBench's ant trains for 400,000 steps. Here returns had levelled off: 181 at 165,000 steps, 187 at the end.
        ExpertRecipe("ant", "online-ant-v0", 224_256, "turned", 2, capacity=400_000),
        ExpertRecipe(
            "antball",
            "online-antball-v0",
            12_000_000,
            "plain",
            4,
            batch=256,
            learning_rate=1e-4,
            episode_steps=200,
            end_is_terminal=True,
            takes_days=True,
        ),
        ExpertRecipe(
            "humanoid",
            "online-humanoid-v0",
            40_000_000,
            "plain",
            4,
            batch=256,
            hidden=(512, 512, 512),
            learning_rate=1e-4,
            aggregate="mean",
            takes_days=True,
        ),
    )
}


def find_expert(name: str) -> ExpertRecipe:
    """The recipe of an expert."""
    if name not in EXPERTS:
        raise ConfigError(f"there is no expert called {name!r}; fidec can train {', '.join(EXPERTS)}")
    return EXPERTS[name]
