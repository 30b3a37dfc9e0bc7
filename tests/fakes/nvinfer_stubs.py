"""Writes C++ classes that do nothing for TensorRT's interfaces: python nvinfer_stubs.py .../NvInferImpl.h > stubs.hpp.

A fake of TensorRT needs all virtual functions of the version whose headers are here, and means only a few of them.
"""

import re
import sys
from pathlib import Path

_CLASSES = {"VRuntime": "RuntimeStubs", "VCudaEngine": "EngineStubs", "VExecutionContext": "ContextStubs"}


def stubs(header: str) -> str:
    """The C++ source."""
    lines = ["#pragma once", "#include <NvInferRuntime.h>", "#include <cstdlib>", "using namespace nvinfer1;"]
    for base, name in _CLASSES.items():
        body = re.search(rf"class {base} : public VRoot\s*{{(.*?)\n}};", header, re.DOTALL)
        assert body, base
        lines.append(f"class {name} : public nvinfer1::apiv::{base} {{\n public:")
        for result, signature in re.findall(r"virtual\s+([^;()]*?)(\w+\s*\([^;]*?)\s*=\s*0;", body[1]):
            value = "" if result.strip() == "void" else "std::abort();" if "&" in result else "return {};"
            lines.append(f"  {result}{signature} override {{ {value} }}")
        lines.append("};")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(stubs(Path(sys.argv[1]).read_text()))
