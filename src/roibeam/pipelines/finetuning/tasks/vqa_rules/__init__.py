"""Rules of VQA by which the releases differ: answer labels and scores, the wording of questions, splits.

A rule a file, chosen by `VqaOptions` of ../vqa.py. Read answers.py first.
"""
