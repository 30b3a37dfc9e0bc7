"""TensorRT engines of a bundle's graphs; in this package an engine is a built TensorRT plan."""
