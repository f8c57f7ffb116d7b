"""One reader per dataset: official files in, typed rows out. Each module states its rule for image ids."""
