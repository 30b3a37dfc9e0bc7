"""From PyTorch modules to ONNX graphs over one file of weights."""
