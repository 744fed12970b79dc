"""Facility location of random similarities, by definition."""

import numpy as np


def random_location(seed, points=9, items=7):
    # Integers, so that sums are exact and ties exist.
    return np.random.default_rng(seed).integers(0, 20, (points, items)).astype(np.float32)


def mask_of(items, size=7):
    return np.isin(np.arange(size), items)


def values_of(similarity, masks):
    return np.where(masks[:, None], similarity[None], 0).max(axis=2).sum(axis=1)


def value_of(similarity, items):
    return values_of(similarity, mask_of(items, similarity.shape[1])[None])[0]
