"""ONNX graphs of a model over one file of weights, and their conversion to float16 and int8."""
