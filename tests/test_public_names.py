"""What users import: a name that goes, or comes, is seen here first."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from house import PACKAGE

import roibeam

NAMES = {
    "roibeam": """
        BatchStream FeatureStore ImageRef RegionBatchSampler RegionDataset RegionIterable RegionProcessor RegionRecord
        StoreWriter VLBatch VLOutput __version__ build_detector extract extract_regions extraction features load_joint
        load_model load_task_model model open_store pipelines verify_store write_store
    """,
    "roibeam.features": """
        BatchBuffers BatchStream ButdTsv DeadLetter FeatureStore Fingerprint Problem RecordSource RegionBatch
        RegionFilter RegionMeta RegionRecord ShardEntry ShardManifest ShardReader ShardSummary ShardWriter StagedStore
        StoreComparison StoreManifest StoreWriter TopKDistribution compare content_digest draw_regions
        feature_space_of merge_digests open_store plan_ranks publish_shard publish_store read_butd_tsv record_digest
        region_labels verify_store write_store
    """,
    "roibeam.extraction": """
        CONFIGS CONVENTIONS Conventions Detector DetectorConfig ExtractOptions Failure HeadOutputs ImageRef MODES
        PRESETS RegionBatch RegionDetector RegionEncoder RegionProcessor Regions SELECTIONS SelectionPolicy
        build_detector collate_photos extract_regions load_encoder_weights load_weights prepare_photo weights_digest
    """,
    "roibeam.model": """
        AttentionMaps EndToEndChoices EndToEndModel GroundingHead GroundingHeadConfig ImageBatch ImageBertConfig
        ImageBertForPreTraining ImagePairHead ImagePairHeadConfig InterBertConfig InterBertForPreTraining
        InterBertForTasks LabelHead LabelHeadConfig RegionHead RegionHeadConfig SingleStreamConfig
        SingleStreamForPreTraining SingleStreamForTasks TaskModel TextTaskModel VLBatch VLBertConfig
        VLBertForPreTraining VLBertForReferring VLBertForVcr VLBertForVqa VLOutput ViLbertConfig ViLbertForMultiTask
        ViLbertForPreTraining ViLbertForTasks VisualBertConfig VisualBertForGrounding VisualBertForLabels
        VisualBertForPreTraining answer_bce computing_padding imagebert_base imagebert_small interbert_config
        interbert_small load_task_head vilbert_config vilbert_small visualbert_config visualbert_small vlbert_base
        vlbert_config vlbert_small vlbert_task_config
    """,
    "roibeam.pipelines": """
        AttentionRequest EvaluateRequest EvaluationConfig ExtractRequest FinetuneRequest LoadedTaskModel OwnTask
        PredictRequest PretrainRequest ProbeRequest RequestedData RequestedDetector RequestedEncoder RequestedImages
        RequestedModel RequestedRecords RequestedStage RequestedTraining RunOptions SearchRequest TableRow TaskAnswer
        analyse_attention evaluate export_store import_features label_task load_joint load_model load_official_joint
        load_task_model photo_inputs read_bert run_extract run_finetuning run_prediction run_pretraining run_stages
        save_joint save_official_joint search_store
        start_from_bert write_probe write_world
    """,
}


@pytest.mark.parametrize("package", NAMES)
def test_these_names_are_offered_and_are_there(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(dir(module)) == sorted(NAMES[package].split())
    given: dict[str, object] = {}
    exec(f"from {package} import *", given)
    assert given.keys() - {"__builtins__"} == set(dir(module))
    for name in dir(module):
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'no_such_name'"):
        getattr(module, "no_such_" + "name")


def test_importing_the_package_imports_nothing_dear(tmp_path: Path) -> None:
    dear = "{'torch', 'numpy', 'apache_beam', 'transformers', 'lmdb'}"
    code = f"import sys, roibeam, roibeam.features, roibeam.model; print({dear} & set(sys.modules))"
    eager = {**os.environ, "EAGER_IMPORT": "1"}  # which lazy_loader obeys
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=eager, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_package_can_be_run_and_is_typed() -> None:
    done = subprocess.run([sys.executable, "-m", "roibeam", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"roibeam {roibeam.__version__}\n"
    assert (PACKAGE / "py.typed").is_file()
    from roibeam.pipelines.extract.photos_to_store import extract  # which no command calls

    assert roibeam.extract is extract


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("RequestedData(stores=['train'])", "RequestedData: stores is called store now"),
        ("RequestedData(['train'], ['a.json'], [2.0])", "3 positional arguments but 4 were given"),
        ("RequestedTraining(100, 8)", "1 positional argument but 3 were given"),
        ("RequestedTraining(resume='step-3')", "the checkpoint to go on from is called resume_from now"),
        ("RequestedEncoder('photos/')", "1 positional argument but 2 were given"),
        ("RequestedEncoder(judge_photos=3)", "is called max_judge_images now"),
        ("RunOptions(0.1)", "1 positional argument but 2 were given"),
        ("EvaluateRequest(checkpoint='a', store='b', config=EvaluationConfig())", "config is the file of --config"),
    ],
)
def test_names_and_places_of_the_release_before_are_refused(call: str, said: str) -> None:
    """For one release: silently they would reach other fields."""
    names = {name: getattr(roibeam.pipelines, name) for name in dir(roibeam.pipelines)}
    with pytest.raises(TypeError, match=said):
        eval(call, names)


@pytest.mark.parametrize(
    "call",
    [
        "pipelines.RequestedData(store='train')",
        "pipelines.RequestedData(text_corpus=Path('text.txt'))",
        "pipelines.RequestedTraining(set='training.steps=3')",
        "pipelines.RequestedImages('photos')",
        "pipelines.RequestedDetector(set='detector.num_classes=3')",
        "pipelines.RunOptions(beam_args='--parallelism=2')",
        "pipelines.RequestedStage('first', None, '--steps 3')",
        "pipelines.ProbeRequest(checkpoint='run', image='a', text='a [MASK]', set='model.x=1')",
        "ImageRef('a', 'a.jpg', captions='a dog')",
        "BatchStream(store, fields='features')",
        "RegionDataset(store, fields='features')",
        "store.get_batch('a')",
        "store.num_regions_of('a')",
        "store.prefetch('a')",
        "features.publish_store('store', [], fingerprint=None, config={}, classes='vocab.txt')",
        "store['a'].draw(None, classes='vocab.txt')",
        "next(extract_regions('a.jpg', None))",
        "next(extract_regions(Path('photos'), None))",
    ],
)
def test_one_name_in_place_of_a_list_is_not_split_into_letters(call: str, tmp_path: Path) -> None:
    region = {"boxes": [[0, 0, 2, 2]], "features": [[0.5]], "class_ids": [0], "class_scores": [0.5]}
    image = {"image_id": "a", "height": 4, "width": 4, **region}
    roibeam.write_store(tmp_path / "store", [image], feature_space="mine")
    with roibeam.open_store(tmp_path / "store") as store:
        names = {name: getattr(roibeam, name) for name in dir(roibeam)} | {"store": store, "Path": Path}
        with pytest.raises(ValueError, match=r"\w+ is a list, got one alone, .*; write \["):
            eval(call, names)
