"""What small models learn on the toy world, and what that says of the papers' claims: `make evidence`.

arms.py says what is trained, worlds.py on what, questions.py what is asked; claims.tsv is the table of what the papers
say and what was found, and page.py writes docs/evidence.md from it. The answers of every run are in results/, which
`run_answers` reads.
"""
