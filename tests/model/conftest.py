"""Lets the tests here import `vilbert_examples`; pytest's importlib mode adds no folder by itself."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
