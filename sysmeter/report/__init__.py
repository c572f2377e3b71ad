"""Results as text and JSON. Nothing here reads a Recording."""
