"""Faults of the models: what they compute, which regions they show, what they predict."""

from __future__ import annotations

from fault import Fault, first_steps

ANY_BATCH = (
    "tests/pipelines/test_pretraining_vilbert.py::test_contrastive_negatives_do_not_depend_on_the_size_of_batches"
)
FAULTS = (
    Fault(
        "one row's seed draws the negatives of all",
        "draw_negatives",
        "manual_seed(draws[row])",
        "manual_seed(draws[0])",
        ANY_BATCH,
    ),
    Fault(
        "negatives come from all of a batch",
        "draw_negatives",
        "real[first : first + group_rows].flatten().nonzero().squeeze(1) + first * num_regions",
        "real.flatten().nonzero().squeeze(1)",
        ANY_BATCH,
    ),
    Fault(
        "each micro-batch adds an epsilon",
        "SumCount.__add__",
        "self.count + other.count, self.epsilon)",
        "self.count + other.count, self.epsilon + other.epsilon)",
        "tests/model/test_vlbert_options.py::test_float64_goes_all_the_way",
    ),
    Fault(
        "random pieces of a group of words are one piece",
        "_replace",
        "generator.integers(vocab_size, size=len(places))",
        "generator.integers(vocab_size)",
        "tests/model/test_group_masking.py::test_every_share_of_what_becomes_of_it[mask_segments-20000]",
    ),
    Fault(
        "the last region of other images is no negative",
        "draw_negatives",
        "others[torch.randint(len(others), ",
        "others[torch.randint(len(others) - 1, ",
        "tests/pipelines/test_draw_frequencies.py::test_negatives_of_a_run_s_rows_come_alike[4000]",
    ),
    Fault(
        "the decoder of words is not the word embedding",
        "MaskedWordHead.forward",
        "F.linear(self.norm(self.activation(self.dense(states))), word_embeddings_VH, self.bias)",
        "F.linear(self.norm(self.activation(self.dense(states))), word_embeddings_VH.detach(), self.bias)",
        first_steps("vl-bert"),
    ),
    Fault(
        "ViLBERT takes a match for a mismatch",
        "beside ViLbertForPreTraining",
        "MATCH_LOGIT = 0",
        "MATCH_LOGIT = 1",
        first_steps("vilbert"),
    ),
    Fault(
        "VisualBERT takes a match for a mismatch",
        "beside VisualBertForPreTraining",
        "MATCH_LOGIT = 1",
        "MATCH_LOGIT = 0",
        first_steps("visualbert"),
    ),
    Fault(
        "IMG is predicted and the last region is not",
        "ViLbertModel.fuse",
        "region_states=elements[:, 1:]",
        "region_states=elements[:, :-1]",
        first_steps("vilbert"),
    ),
    Fault(
        "IMG shows masked regions",
        "elements_with_whole_image",
        "whole = mean_feature(features, visible,",
        "whole = mean_feature(features, batch.region_mask,",
        first_steps("vilbert"),
    ),
    Fault(
        "masked regions keep their features",
        "elements_with_whole_image",
        'kept = batch.region_mask if masked_appearance == "pixels" else visible',
        "kept = batch.region_mask",
        first_steps("interbert"),
    ),
    Fault(
        "regions of mismatched pairs are predicted",
        "InterBertForPreTraining._counted_regions",
        "return predicted_BR & match_B.eq(1)[:, None]",
        "return predicted_BR",
        first_steps("interbert"),
    ),
    Fault(
        "positions of regions start again at 0",
        "VLBertEmbeddings.forward",
        "first_free = text_mask.sum(dim=1)",
        "first_free = text_mask.sum(dim=1) * 0",
        first_steps("vl-bert"),
    ),
    Fault(
        "VL-BERT's whole image shows masked regions",
        "average_visible_regions",
        "visible = (region_mask & ~masked_regions).unsqueeze(-1)",
        "visible = region_mask.unsqueeze(-1)",
        first_steps("vl-bert"),
    ),
    Fault(
        "the mask stands in after the projection, and hides the box",
        "VLBertModel.embed_elements",
        """
        features = self.with_masked_features(elements)
        # A row without an image may bring no size.
        hw, real = image_hw.clamp(min=1), Packing(elements.mask)
        features, boxes = real.pack(features)[:, None], real.pack(elements.boxes)[:, None]
        visuals = real.pad(self.region_projection(features, boxes, hw[real.rows]).squeeze(1))
""",
        """
        hw, real = image_hw.clamp(min=1), Packing(elements.mask)
        features, boxes = real.pack(features)[:, None], real.pack(elements.boxes)[:, None]
        visuals = real.pad(self.region_projection(features, boxes, hw[real.rows]).squeeze(1))
        if self.masked_region_feature is not None:
            width, vector = visuals.shape[-1], self.masked_region_feature.weight.to(visuals.dtype)
            visuals = torch.where(masked, vector.repeat(1, width)[:, :width], visuals)
""",
        first_steps("vl-bert"),
    ),
    Fault(
        "words of text alone share the mean of the captions'",
        "VLBertForPreTraining._score_words",
        'terms.losses["text_only_words"] = own.losses["masked_words"]',
        'terms.losses["text_only_words"] = own.losses["masked_words"] + terms.losses["masked_words"]',
        first_steps("vl-bert"),
    ),
    Fault(
        "a last layer that computes one state of a row takes the first, whichever is read",
        "TransformerEncoder.packed",
        "places = packing.places_of(read_B)",
        "places = packing.firsts",
        "tests/model/test_task_heads.py::test_a_last_layer_leaves_out_what_no_head_reads[VL-BERT-mask_piece]",
    ),
)
