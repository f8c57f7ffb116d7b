"""From a list of captions with URLs to a folder of images: docs/downloads.md."""
