"""From PyTorch modules to ONNX graphs over one file of weights, and their conversion to float16 and int8."""
