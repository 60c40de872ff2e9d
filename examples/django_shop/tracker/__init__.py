"""A tracker on Django whose mail goes through the pipeline."""
