"""Training through the region encoder: photos in place of stored features, and a detector trained beside.

The joint model is model/end_to_end.py, its files are in pipelines/training/model_files; neither is built here. Read
end_to_end_task.py first.
"""
