"""Processes of tests that start as forks of one that has imported everything and computed nothing."""

import importlib.util
import multiprocessing

# Of the product alone: the process does not look for modules in the folders of tests. Python passes over a name that it
# does not find, and each child would import for seconds.
_IMPORTED = (
    "accelerate",
    "faster_coco_eval",
    "pydantic",
    "transformers.modeling_utils",
    "torch.nn.parallel",
    "roibeam.extraction.training.batch_losses",
    "roibeam.pipelines.cli.commands",
    "roibeam.pipelines.extract.beam_extraction",
    "roibeam.extraction.weights.detector_choice",
    "roibeam.pipelines.training.model_files.joint_checkpoint",
    "roibeam.pipelines.pretraining.task",
    "roibeam.pipelines.pretraining.end_to_end_task",
    "roibeam.pipelines.pretraining.requested_run",
    "roibeam.pipelines.pretraining.requested_run",
    "roibeam.pipelines.pretraining.pretrain_run",
    "roibeam.pipelines.extract.stores.store_import",
    "roibeam.pipelines.extract.stores.store_export",
    "roibeam.pipelines.training.loop",
)
for _name in _IMPORTED:
    assert importlib.util.find_spec(_name), _name

# One for all tests: the process whose forks they are has the imports that were last asked for before it starts.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(list(_IMPORTED))
