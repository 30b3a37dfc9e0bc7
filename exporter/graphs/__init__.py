"""ONNX graphs of a model with one weights file, and their conversion to float16 and int8."""
