"""`python -m docs_site FOLDER`: writes the pages and the settings of mkdocs into a new folder."""

import sys
from pathlib import Path

from docs_site.pages import write_pages
from docs_site.reference import reference_pages

if len(sys.argv) != 2:
    sys.exit("expected one argument, a folder to write: python -m docs_site build/site-pages")
write_pages(Path(sys.argv[1]), reference_pages())
