"""Decoding with all state on a GPU, independent of ONNX Runtime and TensorRT."""
