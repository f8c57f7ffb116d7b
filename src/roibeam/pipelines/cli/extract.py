"""`roibeam extract`: photos in, region shards out."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from roibeam.pipelines.cli.options import CONVENTIONS, DETECTOR, HELD_OUT, IMAGES_OF, LEAVE_OUT, PRESET, SELECTION
from roibeam.pipelines.extract.request import (
    ExtractRequest,
    RequestedDetector,
    RequestedImages,
    RequestedRecords,
    RunOptions,
)
from roibeam.pipelines.extract.shard.allocator_arenas import use_one_arena
from roibeam.pipelines.sources.captions.least_match import MIN_MATCH


class ExtractCommand(TyperCommand):
    """What follows -- is for the Beam runner: neither a source nor the store."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        super().parse_args(ctx, args[:end])
        ctx.args = args[end + 1 :]
        return ctx.args


def extract_command(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="A photo, a folder, or several of these (photos/*.jpg); a glob pattern in quotes, .tar (WebDataset) "
            "or .zip read in place, folder or pattern of these, output of img2dataset, .json of COCO, Karpathy, SBU or "
            "Visual Genome, caption .tsv (local paths), .token or folder Sentences of Flickr30k, VCR .jsonl, or a list "
            "as .parquet, .csv or .jsonl; also at gs://, s3://, hdfs://. docs/datasets.md tells each.",
        ),
    ],
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="Store to write, a folder or a URL (s3://, gs://, hdfs://, ...); run again to continue, or to add "
            "what a folder gained.",
        ),
    ],
    weights: Annotated[
        str | None,
        typer.Option(
            help="File (.safetensors, .pkl, .pth, .bin, .caffemodel; local path or gs://, s3://, hdfs:// URL), "
            "hf:<repo>[@revision], https://...[#sha256=<hex>], or random:<seed> (load tests: regions mean nothing) "
            "[default: those of the detector's folder]."
        ),
    ] = None,
    preset: Annotated[str | None, PRESET] = None,
    detector: Annotated[str | None, DETECTOR] = None,
    conventions: Annotated[str | None, CONVENTIONS] = None,
    selection: Annotated[str | None, SELECTION] = None,
    boxes: Annotated[
        str | None,
        typer.Option(
            help="Describe these boxes instead of proposing regions: COCO instances .json, .jsonl of "
            '{"image_id", "boxes": [[x1, y1, x2, y2]]}, bottom-up-attention .tsv, or VCR\'s folder vcr1images. Pixels '
            "of the photo; order and number stay. Images without an entry are left out."
        ),
    ] = None,
    captions: Annotated[
        str | None,
        typer.Option(
            help="Captions of the images of a folder, pattern or archive: .json of COCO, Karpathy (train and restval) "
            "or SBU, .tsv or .token; the store keeps them, see docs/captions.md."
        ),
    ] = None,
    min_match: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the images in --captions that SOURCE must have.")
    ] = MIN_MATCH,
    held_out: Annotated[list[str] | None, HELD_OUT] = None,
    leave_out_held_out: Annotated[bool, LEAVE_OUT] = False,
    images_of: Annotated[str | None, IMAGES_OF] = None,
    image_feature: Annotated[
        str,
        typer.Option(
            help="Also a feature of the whole photo: none, region (as one box, by the detector) or <network>=<weights> "
            "(torchvision's densenet121, resnet50, googlenet, ...)."
        ),
    ] = "none",
    vocab: Annotated[
        str | None,
        typer.Option(
            help="Class and attribute names: folder with objects_vocab.txt and attributes_vocab.txt, file, or vg "
            "[default: those of the detector's folder, else none]."
        ),
    ] = None,
    image_root: Annotated[
        str | None,
        typer.Option(
            help="Folder or URL that the image paths of an annotation file or list are below [default: its own folder, "
            "or one near it that holds the images]."
        ),
    ] = None,
    id_rule: Annotated[str, typer.Option(help="Image id from path: no-extension or with-extension.")] = "no-extension",
    dtype: Annotated[str, typer.Option(help="Stored features: float16, bfloat16 or float32.")] = "float16",
    distribution: Annotated[str, typer.Option(help="Stored class probabilities: full, top-<k> or none.")] = "full",
    device: Annotated[
        str,
        typer.Option(
            help="auto (a GPU where this machine has one), cpu, cuda:<n>, or cuda: of several GPUs each process takes "
            "its own."
        ),
    ] = "auto",
    mode: Annotated[
        str,
        typer.Option(
            help="exact: float32, a feature depends on its photo and box only, bit for bit. Faster, rounding more: "
            "bf16, tf32 (CUDA), batched (photos of one size share calls); BENCHMARKS.md says by how much. The store "
            "records it."
        ),
    ] = "exact",
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of the detector [default: torch's choice].")
    ] = None,
    decode_threads: Annotated[int, typer.Option(min=1, help="Threads that read and decode ahead.")] = 2,
    load_timeout: Annotated[
        float, typer.Option(help="Seconds after which an image that is still being read or decoded is a dead letter.")
    ] = 120.0,
    detect_timeout: Annotated[
        float, typer.Option(help="Seconds after which a detector call that does not come back stops the run.")
    ] = 900.0,
    max_pixels: Annotated[int, typer.Option(min=1, help="Images of more pixels become dead letters.")] = 120_000_000,
    max_failures: Annotated[
        float, typer.Option(min=0, max=1, help="Share of failed images above which the run fails.")
    ] = 0.05,
    shard_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Images per new shard; shards of earlier runs stay [default: about ten minutes of work, at most "
            "4,000].",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.field=value, lists as [1,2]; sections: detector, conventions, selection."),
    ] = None,
    retry_dead_letters: Annotated[
        bool, typer.Option("--retry-dead-letters/--no-retry-dead-letters", help="Redo shards that hold failed images.")
    ] = False,
    runner: Annotated[
        str,
        typer.Option(
            help="local, portable (a job service and a worker process on this machine), flink, spark, dataflow, or a "
            "Beam runner's own name. What a runner needs beside our defaults follows after --; --dry-run shows all."
        ),
    ] = "local",
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            help="Processes of the local runner, each with a model. They share the CPU's threads unless --threads "
            "says how many each has.",
        ),
    ] = 1,
    scratch: Annotated[
        str | None,
        typer.Option(
            help="Folder of each worker in which a shard is written before it is uploaded, where OUT is a URL "
            "[default: the temporary folder]."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run/--no-dry-run", help="Time three photos, print the plan and the runner's options, write nothing."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json/--no-json", help="Progress and result as JSON lines on standard output.")
    ] = False,
) -> None:
    """Extracts region features of all images of SOURCE into OUT.

    A rerun does only what is missing. Images that cannot be used become dead letters with a reason; the exit code is
    non-zero only when more than --max-failures of them do.
    """
    use_one_arena()  # before what is imported here starts threads
    # Heavy imports wait until a command needs them, so that --help is quick.
    from roibeam.pipelines.extract.requested_work import open_plan, open_work

    request = ExtractRequest(
        RequestedImages(
            tuple(sources), image_root=image_root, id_rule=id_rule, boxes=boxes, captions=captions, min_match=min_match,
            held_out=tuple(held_out or ()), leave_out_held_out=leave_out_held_out, images_of=images_of,
        ),
        out,
        RequestedDetector(
            detector, preset=preset, weights=weights, conventions=conventions, selection=selection,
            settings=tuple(settings or ()), vocabulary=vocab, device=device, mode=mode, threads=threads,
        ),
        RequestedRecords(
            dtype=dtype, distribution=distribution, max_pixels=max_pixels, decode_threads=decode_threads,
            image_feature=image_feature, load_timeout=load_timeout, detect_timeout=detect_timeout,
        ),
        RunOptions(
            max_failures=max_failures, retry_dead_letters=retry_dead_letters, runner=runner,
            beam_args=tuple(context.args), workers=workers, as_json=as_json, scratch=scratch,
        ),
        shard_size,
    )  # fmt: skip
    # In both cases torch and Beam come when nothing is wrong with what was asked for.
    if dry_run:
        planned = open_plan(request, tell=_tell)
        from roibeam.pipelines.extract.report.dry_run import dry_run as run_dry

        found = run_dry(planned, request.run)
        typer.echo(found.event() if as_json else found.text())
        return
    work = open_work(request, tell=_tell)
    from roibeam.pipelines.extract.extraction_run import extract_work, summary_event, summary_text

    summary = extract_work(work, request.run, tell=_tell)
    typer.echo(summary_event(summary) if as_json else summary_text(summary))
    if not summary.succeeded:
        _tell(
            f"roibeam: {100 * summary.failed_share:.1f} % of the images failed, more than the {100 * max_failures:g} % "
            f"of --max-failures; the store is complete for the others; {out}/dead_letters.parquet names the failed "
            f"ones, --retry-dead-letters tries them again"
        )
        raise typer.Exit(1)


def _tell(line: str) -> None:
    typer.echo(line, err=True)
