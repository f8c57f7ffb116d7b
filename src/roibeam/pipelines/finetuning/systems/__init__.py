"""How each system reads a task's rows: where texts, [MASK] and regions stand, which state is read, by which head.

A system knows no task; how a row's texts become pieces is alike for all. Read task_system.py first, then row_text.py.
"""
