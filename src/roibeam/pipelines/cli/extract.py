"""`roibeam extract`: photos in, region shards out."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from roibeam.features.counted import byte_count, counted
from roibeam.pipelines.cli.options.caption import HELD_OUT, IMAGES_OF, LEAVE_OUT
from roibeam.pipelines.extract.shard.allocator_arenas import use_one_arena
from roibeam.pipelines.pretraining.requests.request import MIN_MATCH

if TYPE_CHECKING:
    from roibeam.extraction.network.config import DetectorConfig
    from roibeam.features.folders.output_folder import OutputFolder
    from roibeam.pipelines.extract.extraction_run import RunSummary
    from roibeam.pipelines.extract.new_work import Estimate, Work


def extract_command(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="Folder, glob pattern, .tar (WebDataset) or .zip read in place, folder or pattern of these, output of "
            "img2dataset, .json of COCO, Karpathy, SBU or Visual Genome, caption .tsv (local paths), .token or folder "
            "Sentences of Flickr30k, VCR .jsonl, or a list as .parquet, .csv or .jsonl; also at gs://, s3://, hdfs://. "
            "docs/datasets.md tells each."
        ),
    ],
    out: Annotated[
        str,
        typer.Argument(
            help="Store to write, a folder or a URL (s3://, gs://, hdfs://, ...); run again to continue, or to add "
            "what a folder gained."
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
    detector: Annotated[
        str,
        typer.Option(
            help="Network sizes: vg-r101-c4 (Visual Genome, true size, photos at 800/1333 pixels), vg-r101-c4-600 (the "
            "same at 600/1000, as the original and MILVLG) or small. Or a detector with weights and names: a folder "
            "of `roibeam detector train`, or toy, which comes with the project and knows the toy world."
        ),
    ] = "vg-r101-c4",
    conventions: Annotated[
        str | None,
        typer.Option(
            help="Whose arithmetic: hf, d2, caffe, milvlg or vlbert-e2e. Weights of every family load into each; "
            "docs/conventions.md says which system used which, and how far apart they are. [default: those of the "
            "detector's folder, else hf]"
        ),
    ] = None,
    selection: Annotated[
        str, typer.Option(help="Which regions are kept: butd-36, vl-bert, hf-36, ...; see docs/conventions.md.")
    ] = "butd-10-100",
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
            help="Folder or URL that the image paths of an annotation file or list are below [default: its own]."
        ),
    ] = None,
    id_rule: Annotated[str, typer.Option(help="Image id from path: no-extension or with-extension.")] = "no-extension",
    dtype: Annotated[str, typer.Option(help="Stored features: float16, bfloat16 or float32.")] = "float16",
    distribution: Annotated[str, typer.Option(help="Stored class probabilities: full, top-<k> or none.")] = "full",
    device: Annotated[
        str, typer.Option(help="cpu, cuda:<n>, or cuda: of several cards each process takes its own.")
    ] = "cpu",
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
        int | None, typer.Option(min=1, help="Images per shard [default: about ten minutes of work, at most 4,000].")
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
    from roibeam.extraction.engine.extract_options import ExtractOptions
    from roibeam.extraction.selection import SELECTIONS
    from roibeam.features.folders.output_folder import output_folder
    from roibeam.pipelines.extract.extraction_run import RunOptions, run_extract, summary_event
    from roibeam.pipelines.extract.new_work import Work, estimate
    from roibeam.pipelines.extract.runners.option_sets import runner_flags
    from roibeam.pipelines.extract.shard.job import DetectorSpec
    from roibeam.pipelines.extract.shard.store_folder import check_output_folder
    from roibeam.pipelines.foundation.files.remote_files import is_url, use_beam_options
    from roibeam.pipelines.foundation.overrides import apply_overrides
    from roibeam.pipelines.model_files.detector_choice import choose_detector, preset
    from roibeam.pipelines.sources.captions.caption_join import give_captions
    from roibeam.pipelines.sources.given_boxes import give_boxes
    from roibeam.pipelines.sources.held_out import HeldOut, keep_out
    from roibeam.pipelines.sources.image_identity import checked_data_set, data_set_of_source
    from roibeam.pipelines.sources.source_kinds import check_images_are_there, open_source
    from roibeam.pipelines.sources.vocabulary import load_vocabulary

    chosen = choose_detector(detector, weights=weights, conventions=conventions)
    sections = apply_overrides(
        {
            "detector": chosen.config,
            "conventions": chosen.conventions,
            "selection": preset("selection", selection, SELECTIONS),
        },
        settings or [],
    )
    options = ExtractOptions(
        dtype, distribution, max_pixels, decode_threads, image_feature, load_timeout, detect_timeout
    )
    _check_device(device, runner)
    if workers > 1:
        if runner != "local":
            raise ValueError(f"--workers {workers} goes with --runner local; {runner} has its own options, after --")
        threads = threads or max(1, (os.cpu_count() or 1) // workers)
    config = sections["detector"]
    if is_url(source) or is_url(image_root or ""):
        use_beam_options(context.args)
    store = output_folder(out if "://" in out else os.path.abspath(out))
    if scratch is not None and store.local_path is not None:
        raise ValueError("--scratch is for stores at a URL; a store on a disk is written in its own folder")
    images = open_source(source, image_root=image_root, id_rule=id_rule)
    leaks = None
    if held_out:
        data_set = checked_data_set(images_of, data_set_of_source(images))
        images, leaks = keep_out(HeldOut(held_out), images, data_set, leave_out=leave_out_held_out)
    given = None
    if boxes is None and conventions == "vlbert-e2e":
        typer.echo("note: vlbert-e2e was published for given boxes (--boxes); its proposals are nobody's", err=True)
    if boxes is not None:
        images, given = give_boxes(images, boxes)
        if _is_selection_named(context, settings or []):
            typer.echo("note: --selection does nothing with --boxes: every given box is kept", err=True)
    given_captions = None
    if captions is not None:
        images, given_captions = give_captions(images, captions, min_match=min_match)
    if not chosen.is_folder and detector != "small":  # the reduced network has no published size
        _note_edges(conventions or "hf", config)
    work = Work(
        source=images,
        store=store,
        detector=DetectorSpec(
            config, sections["selection"], chosen.weights, device, threads, sections["conventions"], mode
        ),
        options=options,
        vocabulary=chosen.vocabulary
        if vocab is None
        else load_vocabulary(vocab, num_classes=config.num_classes, num_attributes=config.num_attributes or None),
        shard_size=shard_size,
        boxes=given,
        captions=given_captions,
        leaks=leaks,
    )
    check_images_are_there(work.source)
    if dry_run:
        check_output_folder(work.store)
        flags = runner_flags(runner, context.args, device=device)
        found = estimate(work)
        event = {"event": "estimate", **asdict(found), "beam_options": flags}
        typer.echo(json.dumps(event) if as_json else _estimate_text(found, work, flags))
        return
    if not as_json:
        typer.echo(f"{counted(len(work.source.images), 'image')} in {source}", err=True)
    run_options = RunOptions(max_failures, retry_dead_letters, runner, tuple(context.args), workers, as_json, scratch)
    summary = run_extract(work, run_options)
    typer.echo(summary_event(summary, store) if as_json else _summary_text(summary, store))
    if not summary.succeeded:
        share, limit = 100 * summary.failed_share, 100 * max_failures
        typer.echo(
            f"roibeam: {share:.1f} % of the images failed, more than the {limit:g} % of --max-failures; the store is "
            f"complete for the others; {out}/dead_letters.parquet names the failed ones, "
            f"--retry-dead-letters tries them again",
            err=True,
        )
        raise typer.Exit(1)


def _is_selection_named(context: typer.Context, settings: list[str]) -> bool:
    source = context.get_parameter_source("selection")
    is_option = source is not None and source.name == "COMMANDLINE"
    return is_option or any(setting.strip().startswith("selection.") for setting in settings)


def _note_edges(conventions: str, config: DetectorConfig) -> None:
    """Says so when photos are resized to another size than published features of these conventions come from."""
    from roibeam.extraction.network.conventions import PUBLISHED_EDGES

    published, edges = PUBLISHED_EDGES[conventions], (config.short_edge, config.long_edge)
    if edges not in published:
        short, long = published[0]
        typer.echo(
            f"note: photos are resized to {edges[0]}/{edges[1]} pixels (short edge, limit of the long one); published "
            f"features of the conventions {conventions} come from {short}/{long}, which --detector "
            f"{'vg-r101-c4' if short == 800 else 'vg-r101-c4-600'} has",
            err=True,
        )


def _check_device(device: str, runner: str) -> None:
    import torch

    try:
        parsed = torch.device(device)
    except RuntimeError:
        raise ValueError(f"--device {device!r}: expected cpu, cuda or cuda:<n>") from None
    if parsed.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {device!r}: expected cpu, cuda or cuda:<n>")
    # With another runner the devices are those of its workers.
    if runner == "local" and parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {device!r}: torch sees {torch.cuda.device_count()} CUDA devices here")


def _estimate_text(found: Estimate, work: Work, flags: list[str]) -> str:
    from roibeam.pipelines.foundation.console.duration import duration

    disk = byte_count(found.images * found.bytes_per_image)
    without = ""
    if work.options.distribution == "full" and found.images:
        without = " (--distribution top-20 or none takes less)"
    return "\n".join(
        [
            *(f"note: {note}" for note in found.notes),
            f"dry run: nothing written; {counted(found.timed, 'photo')} timed",
            f"  images to extract   {found.images:,}",
            f"  speed               {found.seconds_per_image:.2f} s per image on {work.detector.device}",
            f"  time                {duration(found.seconds)}",
            f"  disk                {disk}, {found.bytes_per_image / 1e3:.0f} kB per image{without}",
            f"  shards              {found.num_shards:,} of at most {counted(found.shard_size, 'image')}",
            f"  Beam options        {' '.join(flags)}",
        ]
    )


def _summary_text(summary: RunSummary, store: OutputFolder) -> str:
    from roibeam.pipelines.extract.report.run_facts import output_tree
    from roibeam.pipelines.foundation.console.duration import duration

    manifest = summary.manifest
    lines = [f"note: {note}" for note in summary.notes]
    lines.append(
        f"{counted(manifest.num_records, 'record')} with {counted(manifest.num_regions, 'region')}, "
        f"{counted(manifest.num_dead_letters, 'dead letter')}; "
        f"{counted(summary.new_images, 'image')} extracted in {duration(summary.seconds)}"
    )
    for reason, count in summary.failures.most_common():
        lines.append(f"  {count:>6,} {reason}")
    return "\n".join([*lines, "", *output_tree(store)])
