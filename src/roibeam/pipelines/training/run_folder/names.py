"""Names of files in a run's folder that are looked for from outside. Without torch: it is imported later."""

PAGE_NAME = "report.html"  # of a run, and of several stages
STAGES_NAME = "stages.json"  # where several stages have run
