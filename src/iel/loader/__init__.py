"""The only door for files: everything this package reads from a disk comes in here, and nothing that comes in can run.

A file is believed only after it has been checked: what kind of file it is (a regular one, never a pipe or a link), how
large it says its arrays are, whether that fits the bytes that are there, and whether it fits the memory budget. No
format that can hold code is read, nothing is unpacked to the disk, and no file can make another one be read.
`tests/test_loader.py` checks that no other module of the package opens one.

    read_json, read_toml      text, small
    read_safetensors          weights
    read_npz, npz_fields      arrays
    read_hdf5, hdf5_fields    arrays
    kind_of                   what a file is, by its first bytes
"""

from iel.loader.files import Field, kind_of, memory_budget
from iel.loader.hdf5 import hdf5_fields, read_hdf5
from iel.loader.npz import npz_fields, read_npz
from iel.loader.tensors import read_safetensors
from iel.loader.text import read_json, read_toml

__all__ = [
    "Field",
    "hdf5_fields",
    "kind_of",
    "memory_budget",
    "npz_fields",
    "read_hdf5",
    "read_json",
    "read_npz",
    "read_safetensors",
    "read_toml",
]
