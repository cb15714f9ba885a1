"""The environment families: one module each, and the entry-point group `fidec.environments`.

A module defines `FAMILY`, an `EnvFamily`. The module's name is the family's name, and so is that of an entry point.
"""

from fidec.envs.family import EnvFamily
from fidec.register import Register

FAMILIES = Register("environment family", "fidec.envs.families", "FAMILY", EnvFamily, "fidec.environments")
