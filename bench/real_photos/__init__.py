"""The whole chain on real photographs: `make evidence-real`."""
