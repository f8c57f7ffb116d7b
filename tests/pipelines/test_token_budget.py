"""Plans of a step under a token budget: every caption once, as many batches for each process, little padding."""

import numpy as np
import pytest

from roibeam.pipelines.pretraining.task import padded_tokens, plan_step

BUDGET, CAP = 1024, 24


def drawn_sizes(seed: int, captions: int, *, most_rows: int = 1) -> np.ndarray:
    draw = np.random.default_rng(seed)
    ranges = ((1, most_rows + 1), (4, 37), (10, 101))
    return np.stack([draw.integers(*ends, captions) for ends in ranges], 1)


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("most_rows", [1, 3])
def test_every_caption_is_in_one_batch_inside_the_budget(processes: int, most_rows: int) -> None:
    for seed in range(20):
        sizes = drawn_sizes(seed, 4 * (1 + 3 * seed), most_rows=most_rows)
        shares = plan_step(sizes, max_tokens=BUDGET, max_captions=CAP, processes=processes)
        batches = [batch for share in shares for batch in share]
        assert sorted(number for batch in batches for number in batch.tolist()) == list(range(len(sizes)))
        assert len({len(share) for share in shares}) == 1 and all(len(batch) for batch in batches)
        assert max(padded_tokens(sizes[batch]) for batch in batches) <= BUDGET
        assert max(map(len, batches)) <= CAP
        for share in shares:
            areas = [padded_tokens(sizes[batch]) for batch in share]
            assert areas == sorted(areas, reverse=True)  # what needs most memory is first


def test_no_process_has_much_more_work_than_the_others() -> None:
    for seed in range(10):
        sizes = drawn_sizes(seed, 512)
        shares = plan_step(sizes, max_tokens=4096, max_captions=512, processes=4)
        work = [sum(padded_tokens(sizes[batch]) for batch in share) for share in shares]
        assert max(work) < 1.06 * sum(work) / 4


def test_alike_lengths_share_a_batch() -> None:
    """Beside batches of as many captions each in the order they come in; shares measured of these very draws."""
    sizes = drawn_sizes(0, 512)
    real = int((sizes[:, 1] + sizes[:, 2]).sum())
    batches = plan_step(sizes, max_tokens=4096, max_captions=512, processes=1)[0]
    planned = 1 - real / sum(padded_tokens(sizes[batch]) for batch in batches)
    as_they_come = 1 - real / sum(padded_tokens(part) for part in np.array_split(sizes, len(batches)))
    assert planned < 0.25 and as_they_come > 0.4


def test_alike_words_share_a_batch_where_all_images_have_as_many_regions() -> None:
    sizes = drawn_sizes(0, 512)
    sizes[:, 2] = 36
    batches = plan_step(sizes, max_tokens=2048, max_captions=512, processes=1)[0]
    assert sum(padded_tokens(sizes[batch]) for batch in batches) < 1.06 * int((sizes[:, 1] + 36).sum())


def test_a_plan_is_the_same_whoever_makes_it() -> None:
    made = [plan_step(drawn_sizes(3, 96), max_tokens=BUDGET, max_captions=CAP, processes=2) for _ in range(2)]
    plans = [[[batch.tolist() for batch in share] for share in plan] for plan in made]
    assert plans[0] == plans[1]


def test_a_caption_that_is_larger_than_the_budget_stands_alone() -> None:
    sizes = np.array([[1, 10, 20], [1, 900, 100], [1, 10, 20], [1, 12, 20]])
    batches = [batch.tolist() for batch in plan_step(sizes, max_tokens=200, max_captions=9, processes=1)[0]]
    assert sorted(batches) == [[0, 2, 3], [1]]
    # As many batches as captions if need be.
    sizes = np.array([[1, 5, 5]] * 6)
    assert [len(share) for share in plan_step(sizes, max_tokens=10, max_captions=9, processes=2)] == [3, 3]
    assert [len(share) for share in plan_step(sizes, max_tokens=99, max_captions=9, processes=6)] == [1] * 6
