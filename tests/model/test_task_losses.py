"""Losses and targets of the tasks and of retrieval, by numbers worked out by hand."""

import math

import pytest
import torch

from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.task_losses import (
    RETRIEVAL_LOSSES,
    answer_bce,
    answer_kl,
    binary_loss,
    class_bce,
    grounding_loss,
    multi_class_loss,
    overlaps,
    phrase_targets,
    referred_targets,
    region_bce,
    retrieval_losses,
    score_regression,
    triplet_loss,
)

LOG2 = math.log(2)
LOG3 = math.log(3)  # its sigmoid is 3/4


def value(term):
    return pytest.approx((term.total.item(), term.count.item()), abs=1e-6)


def test_answers_each_by_itself_are_summed_and_questions_counted():
    logits, targets = torch.tensor([[0.0, LOG3], [0.0, 0.0]]), torch.tensor([[0.3, 1.0], [0.0, 0.0]])
    # ln 2 for each undecided answer, whatever its target; -ln 3/4 for the sure one.
    assert (3 * LOG2 + math.log(4 / 3), 2) == value(answer_bce(logits, targets))
    # The codes: a mean over everything, times the number of answers.
    mean = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets) * 2
    torch.testing.assert_close(answer_bce(logits, targets).mean, mean)


def test_answers_as_a_distribution():
    logits, targets = torch.tensor([[LOG3, 0.0], [0.0, 0.0]]), torch.tensor([[0.5, 0.5], [0.0, 0.0]])
    expected = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert (expected, 2) == value(answer_kl(logits, targets))  # a question without an answer counts


def test_classes_each_by_itself():
    scores, labels = torch.tensor([[LOG3, 0.0, 0.0, -LOG3], [9.0, 9.0, 9.0, 9.0]]), torch.tensor([0, IGNORE_INDEX])
    assert (2 * math.log(4 / 3) + 2 * LOG2, 4) == value(class_bce(scores, labels))


@pytest.mark.parametrize("per, count", [("rows", 2), ("regions", 3)])
def test_regions_and_both_denominators(per, count):
    lowest = torch.finfo(torch.float32).min
    scores = torch.tensor([[LOG3, 0.0], [0.0, lowest]], requires_grad=True)
    targets, mask = torch.tensor([[1.0, 0.6], [0.0, math.nan]]), torch.tensor([[True, True], [True, False]])
    term = region_bce(scores, targets, mask, per=per)
    assert (math.log(4 / 3) + 2 * LOG2, count) == value(term)
    term.mean.backward()
    torch.testing.assert_close(scores.grad, torch.tensor([[-0.25, -0.1], [0.5, 0.0]]) / count)


def test_phrases_divide_by_rows():
    scores, targets = torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)
    targets[0, 0, :2] = 0.5  # KL from the even distribution over four: ln 2
    targets[1, 2, 3] = 1.0  # ln 4
    assert value(grounding_loss(scores, targets)) == (3 * LOG2, 2)


def test_scores_by_their_square():
    assert value(score_regression(torch.tensor([[3.0], [4.5]]), torch.tensor([5.0, 4.0]))) == (4.0 + 0.25, 2)


@pytest.mark.parametrize(
    "loss",
    [
        lambda scores: answer_bce(scores, torch.zeros_like(scores)),
        lambda scores: answer_kl(scores, torch.zeros_like(scores)),
        lambda scores: class_bce(scores, torch.full((len(scores),), IGNORE_INDEX)),
        lambda scores: region_bce(scores, torch.zeros_like(scores), torch.zeros_like(scores).bool(), per="regions"),
        lambda scores: region_bce(scores, torch.zeros_like(scores), torch.zeros_like(scores).bool(), per="rows"),
        lambda scores: grounding_loss(scores[:, None], torch.zeros_like(scores)[:, None]),
    ],
)
@pytest.mark.parametrize("rows", [0, 2])
def test_nothing_to_learn_is_finite_and_has_a_gradient(loss, rows):
    scores = torch.randn(rows, 3, requires_grad=True)
    term = loss(scores)
    term.mean.backward()
    assert term.mean.isfinite() and scores.grad.isfinite().all()


def test_losses_of_half_precision_are_taken_in_single():
    scores = torch.full((3, 4000), 0.001, dtype=torch.bfloat16)
    term = answer_bce(scores, torch.zeros_like(scores))
    assert term.total.dtype == torch.float32
    assert term.mean.item() == pytest.approx(4000 * math.log1p(math.exp(scores[0, 0].item())), rel=1e-5)


def test_overlaps():
    boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0], [5.0, 0.0, 14.0, 9.0], [50.0, 50.0, 50.0, 50.0]])
    plain = overlaps(boxes, boxes[:1], inclusive_sides=False)
    torch.testing.assert_close(plain, torch.tensor([[1.0], [36 / 126], [0.0]]))
    # Ten pixels wide each, five of them shared.
    torch.testing.assert_close(overlaps(boxes, boxes[:1], inclusive_sides=True)[1], torch.tensor([50 / 150]))
    assert overlaps(boxes[2:], boxes[2:], inclusive_sides=False).item() == 0  # no area, no division by it


def test_which_regions_are_referred_to():
    # Against [0, 0, 9, 9] with inclusive sides: IoU 1, exactly 1/2, 60/140, and a padded copy of the right box.
    boxes = torch.tensor([[[0.0, 0, 9, 9], [0, 0, 9, 4], [4, 0, 13, 9], [0, 0, 9, 9]]])
    mask, right = torch.tensor([[True, True, True, False]]), torch.tensor([[0.0, 0, 9, 9]])
    torch.testing.assert_close(referred_targets(boxes, mask, right, kind="iou"), torch.tensor([[1.0, 0.5, 0, 0]]))
    torch.testing.assert_close(referred_targets(boxes, mask, right, kind="binary"), torch.tensor([[1.0, 0, 0, 0]]))
    every = referred_targets(boxes, mask, right, kind="overlap")  # below a half too, as ViLBERT is judged
    torch.testing.assert_close(every, torch.tensor([[1.0, 0.5, 60 / 140, 0]]))
    plain = referred_targets(boxes, mask, right, kind="iou", inclusive_sides=False)
    torch.testing.assert_close(plain, torch.tensor([[1.0, 0, 0, 0]]))  # 36 / 81 is too little now


def test_where_a_phrase_may_point():
    boxes = torch.tensor([[[0.0, 0, 10, 10], [0, 0, 10, 5], [20, 20, 30, 30], [0, 0, 10, 10]]])
    mask = torch.tensor([[True, True, True, False]])
    two, away = [[0.0, 0, 10, 10], [20, 20, 30, 30]], [90, 90, 99, 99]
    right = torch.tensor([[two, two, [away, away]]])
    has = torch.tensor([[[True, True], [True, False], [True, True]]])
    targets = phrase_targets(boxes, mask, right, has)
    expected = torch.tensor([[[1 / 3, 1 / 3, 1 / 3, 0], [1 / 2, 1 / 2, 0, 0], [0, 0, 0, 0]]])
    torch.testing.assert_close(targets, expected)


def test_what_is_refused():
    flat = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="per is 'images'; it must be one of 'rows', 'regions'"):
        region_bce(flat, flat, flat.bool(), per="images")
    with pytest.raises(ValueError, match="kind is 'soft'; it must be one of 'binary', 'iou'"):
        referred_targets(torch.zeros(1, 2, 4), flat.bool(), torch.zeros(1, 4), kind="soft")


# Probabilities of a match 3/4, 1/2 and 1/4; the first is right in one group, the last in the other.
MATCHES = torch.tensor([[math.log(3), 0.0, -math.log(3)]] * 2, dtype=torch.float64)
TRUE = torch.tensor([0, 2])


def test_retrieval_by_hand():
    binary, multi_class, triplet = (loss(MATCHES, TRUE) for loss in (binary_loss, multi_class_loss, triplet_loss))
    assert [binary.count, multi_class.count, triplet.count] == [6, 2, 2]
    right = -math.log(3 / 4) - math.log(1 / 2) - math.log(3 / 4)
    wrong = -math.log(1 / 4) - math.log(1 / 2) - math.log(1 / 4)
    assert binary.total.item() == pytest.approx(right + wrong)
    assert binary_loss(MATCHES[:1], TRUE[:1]).total.item() == pytest.approx(right)
    # Odds 3, 1 and 1/3 of 13/3.
    assert multi_class.total.item() == pytest.approx(-math.log(9 / 13) - math.log(1 / 13))
    assert multi_class_loss(MATCHES[:1], TRUE[:1]).total.item() == pytest.approx(-math.log(9 / 13))
    # 0.2 - 3/4 + 1/2 is below 0; the other group's hardest wrong one is the first.
    assert triplet.total.item() == pytest.approx(0.2 - 1 / 4 + 3 / 4)
    assert triplet_loss(MATCHES, TRUE, margin=0.3).total.item() == pytest.approx(0.05 + 0.8)


def test_the_triplet_moves_the_right_one_and_the_hardest():
    log_odds = MATCHES.clone().requires_grad_()
    triplet_loss(log_odds, TRUE).total.backward()
    assert log_odds.grad[0].eq(0).all() and log_odds.grad[1, 1] == 0
    assert log_odds.grad[1, 0] > 0 > log_odds.grad[1, 2]


def test_the_order_of_candidates_does_not_matter():
    order = torch.tensor([2, 0, 1])
    turned = retrieval_losses(MATCHES[:, order], torch.tensor([1, 0]), tuple(RETRIEVAL_LOSSES))
    for name, term in retrieval_losses(MATCHES, TRUE, tuple(RETRIEVAL_LOSSES)).items():
        torch.testing.assert_close(turned[name].total, term.total)


def test_only_what_is_asked_for():
    assert list(retrieval_losses(MATCHES, TRUE)) == ["binary"]  # the best alone, table 4
    assert list(retrieval_losses(MATCHES, TRUE, ("triplet", "binary"))) == ["triplet", "binary"]


def test_retrieval_in_half_precision_is_summed_in_single():
    for term in retrieval_losses(MATCHES.bfloat16(), TRUE, tuple(RETRIEVAL_LOSSES)).values():
        assert term.total.dtype == torch.float32


@pytest.mark.parametrize(
    "log_odds, names, message",
    [
        (MATCHES, ("binary", "hinge"), "no retrieval loss 'hinge'; there are binary, multi_class, triplet"),
        (MATCHES[:, :1], ("triplet",), r"at least 2 candidates, got shape \(2, 1\)"),
        (MATCHES[0], ("binary",), r"got shape \(3,\)"),
    ],
)
def test_what_retrieval_refuses(log_odds, names, message):
    with pytest.raises(ValueError, match=message):
        retrieval_losses(log_odds, TRUE, names)
