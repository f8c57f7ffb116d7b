"""Options that extract, pretrain and leaks share: how captions must fit, and which images must not be inside."""

from __future__ import annotations

import typer

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
