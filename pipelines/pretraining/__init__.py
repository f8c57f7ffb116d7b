"""Pre-training of the five systems, on one loop: captions and stored records to batches, by each system's own rules.

corpus.py     captions and records by number        sample.py    one row of a batch, and rows to a batch
sampler.py    what a system's rules offer           <system>_samples.py    the rules themselves
pairs.py      which caption meets which image       region_choice.py, caption_and_regions.py    what rules share
text_rows.py  rows of text alone beside captions    usable_captions.py     what is left out and cut
systems.py    which model, sizes and rules belong together
captioned_store.py    a store joined with its captions, one of several
task.py       the task that the loop trains         run.py       a run: store and captions to a run folder
budgeted_task.py      the same steps in batches of alike lengths, by the plans of token_budget.py and row_lengths.py
task_corpus.py        a task's own texts in place of captions
end_to_end.py, end_to_end_task.py    photos in place of stored features; detector_part.py trains the detector too
evaluation_run.py     a trained model judged on held-out captions: evaluation.py, retrieval.py
recipe.py, recipes.py, <system>_recipes.py    the published runs as data
"""
