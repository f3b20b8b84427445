"""The driver: native code for a specialisation's control flow, sizes, memory and kernel calls (see compiler.abi).

    emitter       text of one LLVM function            dims       sizes at run time, each computed once
    values        what is held for each value          memory     allocation, references, overlap
    control       blocks, edges, returns               states     exits
    scalars       Python numbers                       views      views, reshapes, stores
    kernels_call  regions and copies                   library    kernels of the library, joins, paddings
"""
