"""TensorRT engines of a bundle's graphs. In this package an engine is a built TensorRT plan."""
