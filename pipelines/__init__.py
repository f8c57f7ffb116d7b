"""Where things meet: dataset readers, the extraction pipeline, the training loop and its tasks, the command line."""
