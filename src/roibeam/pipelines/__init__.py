"""Meeting place of the other floors: sources, Beam, stores, the training loop and its tasks, pages, the command line.

Imports the other three floors, which do not import it. Read extract/beam_extraction.py or
pretraining/pretrain_run.py first.
"""

# First, so that it is what a clone without an installation says too.
if __name__ != "roibeam.pipelines":
    raise ImportError(f"{__name__!r} is a link to roibeam.pipelines, or a copy of it: import roibeam.pipelines")

from typing import TYPE_CHECKING

from roibeam.lazy_names import lazy_names

if TYPE_CHECKING:
    from roibeam.pipelines.analysis.attention_request import analyse_attention as analyse_attention
    from roibeam.pipelines.analysis.evaluation.evaluate_request import evaluate as evaluate
    from roibeam.pipelines.analysis.evaluation.evaluation_run import EvaluationConfig as EvaluationConfig
    from roibeam.pipelines.analysis.probe_request import write_probe as write_probe
    from roibeam.pipelines.analysis.requests import AttentionRequest as AttentionRequest
    from roibeam.pipelines.analysis.requests import EvaluateRequest as EvaluateRequest
    from roibeam.pipelines.analysis.requests import ProbeRequest as ProbeRequest
    from roibeam.pipelines.data.batches.image_batch import photo_inputs as photo_inputs
    from roibeam.pipelines.data.datasets.tables import TableRow as TableRow
    from roibeam.pipelines.extract.beam_extraction import run_extract as run_extract
    from roibeam.pipelines.extract.request import ExtractRequest as ExtractRequest
    from roibeam.pipelines.extract.request import RequestedDetector as RequestedDetector
    from roibeam.pipelines.extract.request import RequestedImages as RequestedImages
    from roibeam.pipelines.extract.request import RequestedRecords as RequestedRecords
    from roibeam.pipelines.extract.request import RunOptions as RunOptions
    from roibeam.pipelines.extract.stores.store_export import export_store as export_store
    from roibeam.pipelines.extract.stores.store_import import import_features as import_features
    from roibeam.pipelines.finetuning.requests import FinetuneRequest as FinetuneRequest
    from roibeam.pipelines.finetuning.requests import PredictRequest as PredictRequest
    from roibeam.pipelines.finetuning.run.finetune_run import run_finetuning as run_finetuning
    from roibeam.pipelines.finetuning.run.predict_run import run_prediction as run_prediction
    from roibeam.pipelines.finetuning.run.task_model import LoadedTaskModel as LoadedTaskModel
    from roibeam.pipelines.finetuning.run.task_model import TaskAnswer as TaskAnswer
    from roibeam.pipelines.finetuning.run.task_model import load_task_model as load_task_model
    from roibeam.pipelines.finetuning.scored_tasks import OwnTask as OwnTask
    from roibeam.pipelines.finetuning.tasks.labels import label_task as label_task
    from roibeam.pipelines.pretraining.request import PretrainRequest as PretrainRequest
    from roibeam.pipelines.pretraining.request import RequestedData as RequestedData
    from roibeam.pipelines.pretraining.request import RequestedEncoder as RequestedEncoder
    from roibeam.pipelines.pretraining.request import RequestedModel as RequestedModel
    from roibeam.pipelines.pretraining.request import RequestedTraining as RequestedTraining
    from roibeam.pipelines.pretraining.requested_run import RequestedStage as RequestedStage
    from roibeam.pipelines.pretraining.requested_run import run_pretraining as run_pretraining
    from roibeam.pipelines.pretraining.requested_run import run_stages as run_stages
    from roibeam.pipelines.toyworld.write import write_world as write_world
    from roibeam.pipelines.training.model_files.joint_checkpoint import load_joint as load_joint
    from roibeam.pipelines.training.model_files.joint_checkpoint import load_official_joint as load_official_joint
    from roibeam.pipelines.training.model_files.joint_checkpoint import save_joint as save_joint
    from roibeam.pipelines.training.model_files.joint_checkpoint import save_official_joint as save_official_joint
    from roibeam.pipelines.training.model_files.model_checkpoint import load_model as load_model
    from roibeam.pipelines.training.model_files.model_start import read_bert as read_bert
    from roibeam.pipelines.training.model_files.model_start import start_from_bert as start_from_bert

_FILES = {
    "AttentionRequest": "roibeam.pipelines.analysis.requests",
    "analyse_attention": "roibeam.pipelines.analysis.attention_request",
    "EvaluateRequest": "roibeam.pipelines.analysis.requests",
    "evaluate": "roibeam.pipelines.analysis.evaluation.evaluate_request",
    "EvaluationConfig": "roibeam.pipelines.analysis.evaluation.evaluation_run",
    "ProbeRequest": "roibeam.pipelines.analysis.requests",
    "write_probe": "roibeam.pipelines.analysis.probe_request",
    "run_extract": "roibeam.pipelines.extract.beam_extraction",
    "ExtractRequest": "roibeam.pipelines.extract.request",
    "RequestedDetector": "roibeam.pipelines.extract.request",
    "RequestedImages": "roibeam.pipelines.extract.request",
    "RequestedRecords": "roibeam.pipelines.extract.request",
    "RunOptions": "roibeam.pipelines.extract.request",
    "FinetuneRequest": "roibeam.pipelines.finetuning.requests",
    "run_finetuning": "roibeam.pipelines.finetuning.run.finetune_run",
    "PredictRequest": "roibeam.pipelines.finetuning.requests",
    "run_prediction": "roibeam.pipelines.finetuning.run.predict_run",
    "LoadedTaskModel": "roibeam.pipelines.finetuning.run.task_model",
    "TaskAnswer": "roibeam.pipelines.finetuning.run.task_model",
    "load_task_model": "roibeam.pipelines.finetuning.run.task_model",
    "OwnTask": "roibeam.pipelines.finetuning.scored_tasks",
    "label_task": "roibeam.pipelines.finetuning.tasks.labels",
    "load_official_joint": "roibeam.pipelines.training.model_files.joint_checkpoint",
    "save_official_joint": "roibeam.pipelines.training.model_files.joint_checkpoint",
    "TableRow": "roibeam.pipelines.data.datasets.tables",
    "photo_inputs": "roibeam.pipelines.data.batches.image_batch",
    "read_bert": "roibeam.pipelines.training.model_files.model_start",
    "start_from_bert": "roibeam.pipelines.training.model_files.model_start",
    "load_joint": "roibeam.pipelines.training.model_files.joint_checkpoint",
    "save_joint": "roibeam.pipelines.training.model_files.joint_checkpoint",
    "load_model": "roibeam.pipelines.training.model_files.model_checkpoint",
    "PretrainRequest": "roibeam.pipelines.pretraining.request",
    "RequestedData": "roibeam.pipelines.pretraining.request",
    "RequestedEncoder": "roibeam.pipelines.pretraining.request",
    "RequestedModel": "roibeam.pipelines.pretraining.request",
    "RequestedTraining": "roibeam.pipelines.pretraining.request",
    "run_pretraining": "roibeam.pipelines.pretraining.requested_run",
    "RequestedStage": "roibeam.pipelines.pretraining.requested_run",
    "run_stages": "roibeam.pipelines.pretraining.requested_run",
    "export_store": "roibeam.pipelines.extract.stores.store_export",
    "import_features": "roibeam.pipelines.extract.stores.store_import",
    "write_world": "roibeam.pipelines.toyworld.write",
}
__all__ = list(_FILES)
__getattr__, __dir__ = lazy_names(__name__, _FILES)
