"""Make OGBench data sets, with OGBench's environments and scripted oracles."""

from fidec.data.cache import dataset_name
from fidec.make.dataset import MadeDataset, make_dataset
from fidec.make.recipes import RECIPES, Recipe, find_recipe

__all__ = ["RECIPES", "MadeDataset", "Recipe", "dataset_name", "find_recipe", "make_dataset"]
