"""Tensors that this machine does not have, as DLPack describes them."""

import ctypes


class Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("index", ctypes.c_int32))


class Dtype(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", Dtype),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
CUDA, FLOAT = 2, 2


class OnGpu:
    """Dense float32 at an address that only a GPU could read."""

    dtype = "float32"

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.extents = (ctypes.c_int64 * len(shape))(*shape)
        described = Tensor(0xDEAD0000, Device(CUDA, 0), len(shape), Dtype(FLOAT, 32, 1), self.extents, None, 0)
        self.managed = Managed(described, None, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, **options: object) -> object:
        return new_capsule(ctypes.addressof(self.managed), b"dltensor", None)


class Parameter:
    """A NumPy array that gradients are kept for, as torch keeps them."""

    requires_grad = True

    def __init__(self, data: object) -> None:
        self.data = data
        self.shape, self.dtype = data.shape, data.dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()

    def __dlpack__(self, **options: object) -> object:
        return self.data.__dlpack__(**options)
