"""Faults in what heads are asked and how they are judged, and in the files of Flickr30k Entities."""

from fault import Fault

_TESTS = "tests/pipelines/test_attention.py"

FAULTS = (
    Fault(
        "the noun of a phrase is the source of its own arcs",
        "Questioner._sources",
        "(governor if head == place else place,)",
        "(head,)",
        f"{_TESTS}::test_who_must_look_at_what",
    ),
    Fault(
        "any word of a phrase has arcs",
        "Questioner._sources",
        "and head in (place, governor)",
        "and (place in own or governor in own)",
        f"{_TESTS}::test_who_must_look_at_what",
    ),
    Fault(
        "regions begin one place later",
        "words_at_regions",
        "first : first + num_regions",
        "first + 1 : first + 1 + num_regions",
        f"{_TESTS}::test_a_head_that_looks_at_the_right_region_finds_all_that_any_region_covers",
    ),
    Fault(
        "a head is judged on the half that it was chosen on",
        "_halves",
        "layer, head = _best(hit[rows].mean(axis=0), mass[rows].mean(axis=0) > ACTIVE)",
        "layer, head = _best(hit[~rows].mean(axis=0), mass[~rows].mean(axis=0) > ACTIVE)",
        f"{_TESTS}::test_verdicts_need_images_enough_and_the_best_of_many_by_chance_is_none",
    ),
    Fault(
        "heads that look elsewhere are the best too",
        "_best",
        "np.where(active, accuracy, -1.0) if active.any() else accuracy",
        "accuracy",
        f"{_TESTS}::test_the_best_head_is_an_active_one_where_there_is_any",
    ),
    Fault(
        "a phrase has the boxes of its first object alone",
        "entity_boxes",
        "boxes={chain: tuple(each) for chain, each in boxes.items()},",
        "boxes={chain: tuple(each[:1]) for chain, each in boxes.items()},",
        "tests/pipelines/test_toy_entities.py::test_a_phrase_has_the_boxes_of_what_it_names",
    ),
    Fault(
        "a merged box is the first one",
        "covering",
        "gold = np.concatenate([gold[:, :2].min(axis=0), gold[:, 2:].max(axis=0)])[None]",
        "gold = gold[:1]",
        "tests/pipelines/test_metrics.py::test_every_reference_case_is_run_and_passes[metrics_entities]",
    ),
)
