"""`PYTHONPATH=bench python -m evidence.readers`."""

from evidence.readers.bounds import main

main()
