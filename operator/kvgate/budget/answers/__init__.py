"""The question answered: the budget with its verdict, the figures, changes that would fit, engines that share a GPU.

Others use `plan`, `adjust` and `alternatives` of `kvgate.budget`, and every module but `solver`.
"""
