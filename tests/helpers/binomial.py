"""Whether something that is drawn came as often as it should."""

import math


def assert_share(hits: int, trials: int, probability: float) -> None:
    """Within five standard deviations of the binomial."""
    spread = math.sqrt(trials * probability * (1 - probability))
    assert abs(hits - trials * probability) <= 5 * spread, (hits, trials, hits / trials, probability)
