"""The toy world: scenes that the project draws itself, with boxes, attributes, relations and captions."""
