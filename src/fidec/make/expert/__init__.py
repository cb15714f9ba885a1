"""The ant's expert: a policy that walks into a given direction, trained here, which leads ants through mazes.

It is trained in OGBench's environment with OGBench's reward. The learner is fidec's own SAC, so the expert is made in
OGBench's way, but it is not one of OGBench's experts.
"""
