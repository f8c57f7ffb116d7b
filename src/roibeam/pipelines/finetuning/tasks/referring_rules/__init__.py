"""What referring expressions are asked about: which regions are candidates, and which of them count as right."""
