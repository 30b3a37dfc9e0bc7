"""Translate one sentence with the C library and ctypes: python translate.py libtxport.so BUNDLE "a sentence"."""

import ctypes
import sys

library_path, bundle, sentence = sys.argv[1:]
library = ctypes.CDLL(library_path)
library.txport_message.restype = ctypes.c_char_p
library.txport_result_text.restype = ctypes.c_char_p
library.txport_result_text.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
library.txport_translate.argtypes = [
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_char_p),
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
]
library.txport_result_free.argtypes = library.txport_close.argtypes = [ctypes.c_void_p]


def check(code: int) -> None:
    """Raise with the library's message if a call failed."""
    if code != 0:
        raise RuntimeError(library.txport_message().decode())


translator = ctypes.c_void_p()
result = ctypes.c_void_p()
check(library.txport_open(bundle.encode(), None, ctypes.byref(translator)))
texts = (ctypes.c_char_p * 1)(sentence.encode())
check(library.txport_translate(translator, texts, None, 1, None, ctypes.byref(result)))
print(library.txport_result_text(result, 0, None).decode())
library.txport_result_free(result)
library.txport_close(translator)
