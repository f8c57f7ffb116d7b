from __future__ import annotations


def visualbert_trajectory(arrays):
    raise ValueError("not yet")
