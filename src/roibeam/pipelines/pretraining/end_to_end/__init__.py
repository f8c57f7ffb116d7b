"""Training through the region encoder: photos in place of stored features, and a detector trained beside. Read
end_to_end_task.py first.
"""
