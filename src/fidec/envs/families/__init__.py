"""The environment families: one module each, and the entry-point group `fidec.environments`.

A module defines `FAMILY`, an `EnvFamily`. Its name is the module's name.
"""

from fidec.envs.family import EnvFamily
from fidec.register import Register

FAMILIES = Register("environment family", "fidec.envs.families", "FAMILY", EnvFamily, "fidec.environments")
