"""What a reader without eyes, and one that knows the scene, reach at each question: floors and ceilings.

bounds.py puts them together; each other file answers one kind of question. No model is trained here.
"""
