"""Systems on tasks: places of texts, [MASK] and regions in a row, the states that heads read, and the heads.

A system knows no task; a row's texts become pieces in one way for all. ImageBERT stands in visualbert.py, InterBERT in
vilbert.py. Read task_system.py first, then vlbert.py.
"""
