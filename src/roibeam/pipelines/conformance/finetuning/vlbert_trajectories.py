from __future__ import annotations


def vlbert_trajectory(arrays):
    raise ValueError("not yet")
