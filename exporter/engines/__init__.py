"""From a bundle's graphs to TensorRT engines; in this package an engine is a built TensorRT plan."""
