"""From a bundle's graphs to TensorRT engines."""
