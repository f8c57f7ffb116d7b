"""Starting from BERT: a model that sees no image is BERT, and what BERT lacks is told."""

import pytest
import torch
from model_examples import make_interbert
from vilbert_examples import BERT_SIZES, make_batch, make_bert, tiny, with_old_norms

from roibeam.model.common.checkpoint import load_start, tidy_bert
from roibeam.model.imagebert.model import ImageBertConfig, ImageBertForPreTraining
from roibeam.model.imagebert.model import state_from_bert as imagebert_state
from roibeam.model.interbert.checkpoint import state_from_bert as interbert_state
from roibeam.model.vilbert.checkpoint import state_from_bert as vilbert_state
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.visualbert.checkpoint import state_from_bert as visualbert_state
from roibeam.model.visualbert.model import VisualBertConfig, VisualBertForPreTraining


@pytest.fixture(scope="module")
def bert():
    return make_bert()


def bert_states(bert, batch):
    segments = batch.text_segments
    with torch.no_grad():
        return bert(batch.text_ids, batch.text_mask.long(), token_type_ids=segments, output_hidden_states=True)


SIZES = BERT_SIZES | {"region_feature_size": 12}


def read_without_regions(bert, model, encode):
    """What the model and BERT make of a text alone; the words that they predict are compared."""
    batch = make_batch(regions=(0, 0, 0))
    theirs, real = bert_states(bert, batch), batch.text_mask
    with torch.no_grad():
        output = encode(batch)
        logits = model.word_logits(output.text_states)
    torch.testing.assert_close(logits[real], theirs.prediction_logits[real], rtol=1e-4, atol=1e-5)
    return output, theirs


def test_visualbert_without_regions_is_bert(bert):
    model = VisualBertForPreTraining(VisualBertConfig(**SIZES)).eval()
    left = load_start(model, visualbert_state(bert.state_dict()))
    assert left == ["visualbert.embeddings.projection.weight", "visualbert.embeddings.projection.bias"]
    output, theirs = read_without_regions(bert, model, model.encode)
    torch.testing.assert_close(model.match_head(output.pooled), theirs.seq_relationship_logits, rtol=1e-4, atol=1e-5)
    tables = model.visualbert.embeddings
    assert torch.equal(tables.region_segments.weight, bert.bert.embeddings.token_type_embeddings.weight)


def test_imagebert_without_regions_is_bert(bert):
    model = ImageBertForPreTraining(ImageBertConfig(**SIZES)).eval()
    left = load_start(model, imagebert_state(bert.state_dict()))
    new = ("region_class_head", "region_feature_head", "match_head", "features", "locations", "region_norm")
    assert {name.removeprefix("imagebert.embeddings.").rsplit(".", 1)[0] for name in left} == set(new)
    output, theirs = read_without_regions(bert, model, model.encode)
    torch.testing.assert_close(output.pooled, bert.bert.pooler(theirs.hidden_states[-1]), rtol=1e-4, atol=1e-5)
    assert torch.equal(model.imagebert.embeddings.segments.weight, bert.bert.embeddings.token_type_embeddings.weight)


@pytest.mark.parametrize("joint, text", [(2, 1), (3, 0)])
def test_interbert_on_text_alone_is_bert(bert, joint, text):
    model = make_interbert(num_hidden_layers=joint, text_num_hidden_layers=text)
    left = load_start(model, interbert_state(bert.state_dict(), joint))
    filled = ("text_embeddings.", "joint.", "text.", "masked_word_head.")
    assert left and not any(name.removeprefix("interbert.").startswith(filled) for name in left)
    read_without_regions(bert, model, model.encode_text)


def test_the_paper_s_interbert_leaves_the_text_s_layers_as_drawn(bert):
    """Appendix 6.2: BERT fills the joint layers, "the new weight parameters are randomly initialized"."""
    model = make_interbert(num_hidden_layers=3, text_num_hidden_layers=2)
    left = load_start(model, interbert_state(bert.state_dict(), 3))
    assert sum(name.startswith("interbert.text.layers.") for name in left) == 2 * 16
    with pytest.raises(ValueError, match=r"text\.layers\.0\S+: BERT has .*, this model no such parameter"):
        load_start(make_interbert(text_num_hidden_layers=0), interbert_state(bert.state_dict(), 2))


def test_vilbert_s_text_before_the_first_co_attention_is_bert(bert):
    model = ViLbertForPreTraining(tiny(text_co_attention=(2,), image_co_attention=(1,))).eval()
    left = load_start(model, vilbert_state(bert.state_dict()))
    of_text = ("text_embeddings", "encoder.text_layers", "masked_word_head")
    assert left and not any(part in name for name in left for part in of_text)
    batch = make_batch()
    with torch.no_grad():
        states = model.vilbert.read_text(batch).states
    real = batch.text_mask
    theirs = bert_states(bert, batch).hidden_states[2]
    torch.testing.assert_close(states, theirs[real], rtol=1e-4, atol=1e-5)
    assert torch.equal(model.masked_word_head.bias, bert.cls.predictions.bias)


def test_old_names_and_the_encoder_alone(bert):
    wanted = tidy_bert(bert.state_dict())
    assert tidy_bert(with_old_norms(bert.state_dict())).keys() == wanted.keys()
    alone = tidy_bert(bert.bert.state_dict() | {"embeddings.position_ids": torch.arange(4)})
    assert alone.keys() == {name for name in wanted if name.startswith("bert.")}
    state = vilbert_state(bert.bert.state_dict())
    assert "vilbert.text_embeddings.words.weight" in state and "masked_word_head.bias" not in state


def test_what_does_not_fit_is_named(bert):
    state = vilbert_state(bert.state_dict())
    with pytest.raises(ValueError, match=r"words\.weight: BERT has \(90, 24\), this model \(91, 24\); do its sizes"):
        load_start(ViLbertForPreTraining(tiny(vocab_size=91)), state)
    with pytest.raises(ValueError, match=r"text_layers\.2.*this model no such parameter"):
        load_start(ViLbertForPreTraining(tiny(num_hidden_layers=2, text_co_attention=(0, 1))), state)
    with pytest.raises(ValueError, match="is no BERT"):
        vilbert_state({"weight": torch.ones(2)})
    with pytest.raises(ValueError, match=r"'bert\.encoder\.rotary' is not one of"):
        vilbert_state(bert.state_dict() | {"bert.encoder.rotary": torch.ones(2)})
