"""Data that fidec can make by itself, with the scripted oracles that made OGBench's own."""

from fidec.make.dataset import MadeDataset, make_dataset
from fidec.make.recipes import RECIPES, Recipe, dataset_name, find_recipe

__all__ = ["RECIPES", "MadeDataset", "Recipe", "dataset_name", "find_recipe", "make_dataset"]
