"""Decoding with all state on a GPU; knows neither ONNX Runtime nor TensorRT."""
