"""A store made by an array of jobs, each with its part of the photos; joined, verified, and read by several ranks.

    python examples/cluster_job.py                                                  # here: two parts, then the rest
    sbatch --array=0-7 --wrap "python examples/cluster_job.py part PHOTOS STORE"    # on a cluster: each job its part
    python examples/cluster_job.py join STORE                                       # when all jobs have ended

PHOTOS is a folder of photos. All jobs must see it, and the folder of STORE, under one path. The first line draws
pictures of the toy world; DETECTOR is for these, name your own. A stopped job is called again (docs/cluster.md).

It takes some twenty seconds on one free core. It prints what each job did, whether the joined store is whole, and how
many images each rank of a training would read. It writes STORE and STORE.parts.
"""

import os
import subprocess
import sys
from pathlib import Path

from roibeam import FeatureStore, RegionIterable, verify_store
from roibeam.pipelines import write_world

DETECTOR, RANKS = ["--detector", "toy"], 2


def roibeam(*arguments):
    subprocess.run([sys.executable, "-m", "roibeam", *map(str, arguments)], check=True)


def part(photos, store):
    """A job of the array: every n-th photo from the k-th on, into a store of its own."""
    k, n = int(os.environ["SLURM_ARRAY_TASK_ID"]), int(os.environ["SLURM_ARRAY_TASK_COUNT"])
    names = sorted(str(each.relative_to(photos)) for each in Path(photos).rglob("*") if each.is_file())
    own = Path(f"{store}.parts", str(k))
    own.parent.mkdir(parents=True, exist_ok=True)
    own.with_suffix(".txt").write_text("\n".join(names[k::n]), "utf-8")
    roibeam("extract", own.with_suffix(".txt"), own, "--photos", photos, *DETECTOR)


def join(store):
    parts = sorted(each for each in Path(f"{store}.parts").iterdir() if each.is_dir())
    roibeam("progress", *parts)  # ends the program if a job has failed or is still at work
    roibeam("store", "copy", *parts, store)
    print(f"{store}: {verify_store(store, deep=True) or 'no problem found'}")
    with FeatureStore(store) as opened:
        for rank in range(RANKS):  # a training process reads one of these
            batches = RegionIterable(opened, batch_size=4, rank=rank, num_ranks=RANKS, at_epoch_end="short")
            ids = sorted(each for batch in batches for each in batch["image_ids"])
            print(f"rank {rank}: {len(ids)} of {len(opened)} images, {', '.join(ids[:2])}, ...")
            Path(f"{store}.parts", f"rank-{rank}.txt").write_text("\n".join(ids), "utf-8")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        write_world(Path("toy"), num_images=200)
        for k in range(2):
            os.environ |= {"SLURM_ARRAY_TASK_ID": str(k), "SLURM_ARRAY_TASK_COUNT": "2"}
            part("toy/coco/train2014", "cluster.store")
        join("cluster.store")
    else:
        {"part": part, "join": join}.get(sys.argv[1], lambda *_: print(__doc__))(*sys.argv[2:])
