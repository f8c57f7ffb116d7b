"""Options that extract, pretrain and leaks share: how captions must fit, and which images must not be inside."""

from __future__ import annotations

import typer

# A wrong folder gives next to nothing. Of Conceptual Captions a third of the links were dead years ago, and more die.
MIN_MATCH = 0.25
HELD_OUT = typer.Option(
    "--held-out",
    metavar="RULE=FILE",
    help="Images that must not be inside, repeatable: refcoco, refcoco+ or refcocog='refs(unc).p', "
    "karpathy=dataset_coco.json, flickr30k=test.txt, vqa=questions.json, list=ids.txt; visual-genome=image_data.json "
    "finds its copies of COCO's. See docs/captions.md.",
)
LEAVE_OUT = typer.Option(
    "--leave-out-held-out/--refuse-held-out", help="Drop images that --held-out names, instead of stopping."
)
IMAGES_OF = typer.Option(
    "--images-of",
    help="Whose numbers ids such as 2415417 are, where kind and folder do not tell: coco, flickr30k or visual-genome.",
)


def checked_data_set(images_of: str | None, known: str | None) -> str | None:
    """The data set that bare numbers belong to: as the user says, else as is known of the source or store."""
    from roibeam.pipelines.sources.image_identity import DATA_SETS

    if images_of is not None and images_of not in DATA_SETS:
        raise ValueError(f"--images-of {images_of!r}: choose one of {', '.join(DATA_SETS)}")
    return images_of or known
